// Compiles what follows for the instruction set HALOGEN_TARGET. No include guard: once per
// translation unit, after the standard headers, whose inline functions other units share.

#define HALOGEN_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HALOGEN_COMPILE_FOR(target_name) \
  HALOGEN_PRAGMA(clang attribute push(__attribute__((target(target_name))), apply_to = function))
#else
#define HALOGEN_COMPILE_FOR(target_name) HALOGEN_PRAGMA(GCC target(target_name))
#endif
HALOGEN_COMPILE_FOR(HALOGEN_TARGET)
