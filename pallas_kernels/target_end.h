// Ends what target_begin.h began. GCC's target lasts to the end of the translation unit, so that it
// holds for the templates that are instantiated there.

#if defined(__clang__)
#pragma clang attribute pop
#endif
