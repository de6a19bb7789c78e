/*
 * Binds what the linker would take from a newer glibc to old symbol versions,
 * so that the library loads wherever glibc 2.17 does. Included first by the
 * compiler's command line (-include); a test holds the imports to it.
 *
 * dlopen moved from libdl to libc in 2.34; the old version is still in libc
 * there, and the DT_NEEDED entry for libdl finds it on older systems.
 */
#if defined(__ASSEMBLER__)
/* The stubs import nothing. */
#elif defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
__asm__(".symver dlerror, dlerror@GLIBC_2.17");
#else
#error "the library is for x86-64 and aarch64"
#endif
