/*
 * A hostile member of a claim: it writes garbage over the accounting region at
 * random moments, as fast as it can, until stdin ends.
 *
 *   scribble <usage file>
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../abi.h"

/* The header's words and those of the first slots are hit the most often. */
static size_t target(void)
{
	switch (rand() % 4) {
	case 0:
		return (size_t)rand() % 192;
	case 1:
	case 2:
		return AQ_HEADER_SIZE + (size_t)rand() % 16 * AQ_SLOT_SIZE +
		       (size_t)rand() % 64;
	default:
		return (size_t)rand() % (AQ_USAGE_SIZE - 8);
	}
}

int main(int argc, char **argv)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	unsigned char *region = mmap(NULL, AQ_USAGE_SIZE,
				     PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (region == MAP_FAILED)
		return 3;
	printf("ready\n");
	fflush(stdout);
	while (poll(&in, 1, 0) == 0)
		for (int i = 0; i < 100; i++) {
			uint64_t garbage = (uint64_t)rand() << 33 ^
					   (uint64_t)rand() << 11 ^
					   (uint64_t)rand();

			if (rand() % 4 == 0)
				garbage = rand() % 2 ? ~UINT64_C(0) : 0;
			memcpy(region + target(), &garbage, sizeof(garbage));
		}
	return 0;
}
