/*
 * Failures of single calls, which a test asks for in run/nvidia-sim/call-faults,
 * a page that every process maps at cuInit:
 *
 *	u32	0: there are none; else changes with every change of the text
 *	text	ended by a NUL, one a line:
 *		cuMemAlloc_v2 call 3 error 2	the third call from now on fails
 *		cuMemAlloc_v2 error 2		every call fails
 *		procaddr differ			cuGetProcAddress gives pointers of
 *						its own, not those of dlsym
 *
 * Calls are counted in each process by itself. Every exported function begins
 * with a stub (cuda_api.h) that looks at the first word and nothing else.
 */
#include "cuda_fault.h"
#include "cuda_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAULTS_MAX 64
#define PAGE 4096

struct fault {
	char name[64];
	unsigned call; /* 0: every one */
	unsigned seen;
	int error;
};

static const uint32_t none[1];

/* The stubs read it, so it has no static name. */
const volatile uint32_t *sim_fault_page __attribute__((visibility("hidden"))) =
	none;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[FAULTS_MAX];
static unsigned count;
static uint32_t read_version;
static bool differ;

void faults_map(const char *root)
{
	char path[SIM_PATH_MAX];
	void *page = MAP_FAILED;

	if (sim_fault_page != none ||
	    !sim_path(path, root, "run/nvidia-sim/call-faults"))
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (lseek(fd, 0, SEEK_END) >= PAGE)
		page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page != MAP_FAILED)
		sim_fault_page = page;
}

static void read_line(const char *line)
{
	struct fault fault = { .call = 0 };

	if (strcmp(line, "procaddr differ") == 0)
		differ = true;
	else if (count < FAULTS_MAX &&
		 (sscanf(line, "%63s call %u error %d", fault.name, &fault.call,
			 &fault.error) == 3 ||
		  sscanf(line, "%63s error %d", fault.name, &fault.error) == 2))
		faults[count++] = fault;
}

/* With the lock held. Counting begins again. */
static void read_page(void)
{
	char text[PAGE - sizeof(uint32_t) + 1];

	if (sim_fault_page[0] == read_version)
		return;
	read_version = sim_fault_page[0];
	memcpy(text, (const char *)(sim_fault_page + 1), sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	count = 0;
	differ = false;
	char *rest = text;
	for (char *line; (line = strsep(&rest, "\n")) != NULL;)
		read_line(line);
}

/* The number that the call must return; 0: it is to go on. */
int sim_fault_of_call(const char *name) __attribute__((visibility("hidden")));

int sim_fault_of_call(const char *name)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	read_page();
	for (unsigned i = 0; i < count && error == 0; i++)
		if (strcmp(faults[i].name, name) == 0 &&
		    (faults[i].call == 0 ||
		     ++faults[i].seen == faults[i].call))
			error = faults[i].error;
	pthread_mutex_unlock(&lock);
	return error;
}

static bool pointers_differ(void)
{
	bool result;

	if (sim_fault_page[0] == 0)
		return false;
	pthread_mutex_lock(&lock);
	read_page();
	result = differ;
	pthread_mutex_unlock(&lock);
	return result;
}

#if defined(__x86_64__)
#define JUMP { 0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3 }
#define JUMP_ADDRESS 2 /* movabs $address, %r11; jmp *%r11 */
#elif defined(__aarch64__)
#define JUMP { 0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0 }
#define JUMP_ADDRESS 8 /* ldr x16, .+8; br x16; address */
#endif

#define DETOURS_MAX 512
static struct {
	void *to, *from;
} detours[DETOURS_MAX];

/* Code that does nothing but jump there. */
static void *make_detour(void *to)
{
	static const unsigned char jump[] = JUMP;
	unsigned char *code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (code == MAP_FAILED)
		return to;
	memcpy(code, jump, sizeof(jump));
	memcpy(code + JUMP_ADDRESS, &to, sizeof(to));
	mprotect(code, PAGE, PROT_READ | PROT_EXEC);
	__builtin___clear_cache((char *)code, (char *)code + sizeof(jump));
	return code;
}

/* The same pointer every time, as the real driver gives. */
void *fault_detour(void *function)
{
	unsigned i = 0;

	if (function == NULL || !pointers_differ())
		return function;
	pthread_mutex_lock(&lock);
	while (i < DETOURS_MAX - 1 && detours[i].to != NULL &&
	       detours[i].to != function)
		i++;
	if (detours[i].to != function) {
		detours[i].to = function;
		detours[i].from = make_detour(function);
	}
	function = detours[i].from;
	pthread_mutex_unlock(&lock);
	return function;
}

#if defined(SIM_STUBS)
/* From a stub: r10 is the function, r11 its name. All registers that may hold
 * arguments are kept, and the stack is as it was when the function begins. */
__asm__(".text\n"
	".hidden sim_fault_stub\n"
	".globl sim_fault_stub\n"
	".type sim_fault_stub,@function\n"
	"sim_fault_stub:\n"
	"	push %rdi\n"
	"	push %rsi\n"
	"	push %rdx\n"
	"	push %rcx\n"
	"	push %r8\n"
	"	push %r9\n"
	"	push %r10\n"
	"	mov %r11, %rdi\n"
	"	call sim_fault_of_call\n"
	"	pop %r10\n"
	"	pop %r9\n"
	"	pop %r8\n"
	"	pop %rcx\n"
	"	pop %rdx\n"
	"	pop %rsi\n"
	"	pop %rdi\n"
	"	test %eax, %eax\n"
	"	jnz 1f\n"
	"	jmp *%r10\n"
	"1:	ret\n"
	".size sim_fault_stub, .-sim_fault_stub\n");
#endif
