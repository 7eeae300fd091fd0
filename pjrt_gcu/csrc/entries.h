// Each file of the plugin that replaces entries of the driver's table does it in one function.
#pragma once

#include "pjrt_abi.h"

namespace gcu {

void InstallErrorEntries(PJRT_Api& table);
void InstallPluginEntries(PJRT_Api& table);
void InstallClientEntries(PJRT_Api& table);
void InstallDeviceEntries(PJRT_Api& table);
void InstallBufferEntries(PJRT_Api& table);
void InstallReadEntries(PJRT_Api& table);
void InstallTransferEntries(PJRT_Api& table);
void InstallProgramEntries(PJRT_Api& table);

}  // namespace gcu
