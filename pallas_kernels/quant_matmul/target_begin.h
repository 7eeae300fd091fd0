// Compiles what follows for the instruction set HALOGEN_TARGET. No include guard: once per
// translation unit, after the standard headers, whose inline functions other units share.

#if defined(__clang__)
#define HALOGEN_QUOTED(text) _Pragma(#text)
#define HALOGEN_ATTRIBUTE(target_name) \
  HALOGEN_QUOTED(clang attribute push(__attribute__((target(target_name))), apply_to = function))
HALOGEN_ATTRIBUTE(HALOGEN_TARGET)
#else
#define HALOGEN_QUOTED(text) _Pragma(#text)
#define HALOGEN_ATTRIBUTE(target_name) HALOGEN_QUOTED(GCC target(target_name))
HALOGEN_ATTRIBUTE(HALOGEN_TARGET)
#endif
