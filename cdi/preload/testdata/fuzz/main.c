/*
 * Calls a fuzz target without libFuzzer: with every file of a corpus, and then
 * with random changes of them. It does not see what the target covers.
 *
 *   fuzz <runs> <seconds> <corpus folder>
 *
 * It ends at whichever comes first; 0 is no limit. The last input is always in
 * the file last-input, should the target end the process.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX 4096
#define CORPUS_MAX 64

static struct input {
	size_t size;
	uint8_t bytes[INPUT_MAX];
} corpus[CORPUS_MAX], *last;

static unsigned corpus_count;

static void read_corpus(const char *folder)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;

	while (directory && (entry = readdir(directory)) &&
	       corpus_count < CORPUS_MAX) {
		char path[4096];
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (!file)
			continue;
		corpus[corpus_count].size = fread(corpus[corpus_count].bytes, 1,
						  INPUT_MAX, file);
		corpus_count++;
		fclose(file);
	}
	if (directory)
		closedir(directory);
}

static void run(const struct input *input)
{
	*last = *input;
	LLVMFuzzerTestOneInput(input->bytes, input->size);
}

static size_t place(const struct input *input)
{
	return input->size ? (size_t)rand() % input->size : 0;
}

static void insert(struct input *input, size_t n)
{
	size_t at = place(input);

	if (n > INPUT_MAX - input->size)
		n = INPUT_MAX - input->size;
	memmove(input->bytes + at + n, input->bytes + at, input->size - at);
	for (size_t i = 0; i < n; i++)
		input->bytes[at + i] = (uint8_t)rand();
	input->size += n;
}

static void cut(struct input *input, size_t n)
{
	size_t at = place(input);

	if (n > input->size - at)
		n = input->size - at;
	memmove(input->bytes + at, input->bytes + at + n,
		input->size - at - n);
	input->size -= n;
}

/* A piece of another input over a piece of this one. */
static void graft(struct input *input)
{
	const struct input *other = &corpus[(unsigned)rand() % corpus_count];
	size_t from = place(other), to = place(input);
	size_t n = other->size - from;

	if (n > input->size - to)
		n = input->size - to;
	memcpy(input->bytes + to, other->bytes + from, n);
}

static void mutate(struct input *input)
{
	static const uint8_t odd[] = { 0, 1, 2, 4, 7, 0x7f, 0x80, 0xff,
				       '\n', ' ', '-', '.', '9' };

	for (int changes = 1 + rand() % 6; changes > 0; changes--)
		switch (rand() % 6) {
		case 0:
			insert(input, 1 + (size_t)rand() % 12);
			break;
		case 1:
			cut(input, 1 + (size_t)rand() % 12);
			break;
		case 2:
			graft(input);
			break;
		case 3:
			input->bytes[place(input)] ^= (uint8_t)(1 << rand() % 8);
			break;
		default:
			input->bytes[place(input)] =
				odd[(size_t)rand() % sizeof(odd)];
		}
}

int main(int argc, char **argv)
{
	int fd = open("last-input", O_CREAT | O_RDWR | O_TRUNC, 0600);
	unsigned long runs, seconds, n = 0;
	time_t begin = time(NULL);

	if (argc != 4 || ftruncate(fd, sizeof(*last)))
		return 3;
	runs = strtoul(argv[1], NULL, 10);
	seconds = strtoul(argv[2], NULL, 10);
	last = mmap(NULL, sizeof(*last), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		    0);
	read_corpus(argv[3]);
	if (last == MAP_FAILED || !corpus_count)
		return 3;
	for (unsigned i = 0; i < corpus_count; i++)
		run(&corpus[i]);
	for (; (!runs || n < runs) &&
	       (!seconds || time(NULL) - begin < (time_t)seconds);
	     n++) {
		struct input input = corpus[(unsigned)rand() % corpus_count];

		mutate(&input);
		run(&input);
	}
	printf("%lu inputs\n", n);
	return 0;
}
