/* What the checks in C share. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition) \
	((condition) ? (void)0 : \
		       (void)(failures++, printf("%s:%d: %s is not so\n", \
						 __FILE__, __LINE__, #condition)))
#define EQUAL(got, want) \
	do { \
		long long g_ = (long long)(got), w_ = (long long)(want); \
		if (g_ != w_) { \
			printf("%s:%d: %s is %lld, want %lld\n", __FILE__, \
			       __LINE__, #got, g_, w_); \
			failures++; \
		} \
	} while (0)
#define OK(call) EQUAL(call, CUDA_SUCCESS)

struct check_case {
	const char *name;
	void (*run)(void);
};

static int run_case(const struct check_case *cases, size_t count, int argc,
		    char **argv)
{
	for (size_t i = 0; i < count; i++) {
		if (argc == 2 && strcmp(cases[i].name, argv[1]) == 0) {
			cases[i].run();
			fflush(stdout);
			return failures != 0;
		}
	}
	printf("no such case\n");
	return 2;
}

#define RUN_CASE(cases, argc, argv) \
	run_case(cases, sizeof(cases) / sizeof((cases)[0]), argc, argv)

#endif
