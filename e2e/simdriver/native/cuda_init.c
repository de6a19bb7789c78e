/* cuInit, versions, and what fork does to an initialised process. */
#include "cuda_fault.h"
#include "cuda_state.h"

struct cuda_process cuda = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool forked; /* a child of a process that had called cuInit */

/* The real driver does not work in such a child either: every call says that it
 * is not initialised, cuInit too. */
static void in_child(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	forked = cuda.initialised || forked;
	cuda.initialised = false;
	cuda.lock = fresh;
	ledger_forked();
}

static CUresult begin(void)
{
	if (!sim_root_of(&cuda, cuda.root) ||
	    !sim_hardware_load(cuda.root, &cuda.hardware))
		return CUDA_ERROR_NO_DEVICE;
	faults_map(cuda.root);
	devices_find();
	if (cuda.device_count == 0)
		return CUDA_ERROR_NO_DEVICE;
	return ledger_open(cuda.root) ? CUDA_SUCCESS :
					CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

CUresult cuInit(unsigned flags)
{
	CUresult result = CUDA_SUCCESS;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (forked) {
		result = CUDA_ERROR_NOT_INITIALIZED;
	} else if (!cuda.initialised) {
		static bool watching;
		if (!watching)
			watching = pthread_atfork(NULL, NULL, in_child) == 0;
		result = begin();
		cuda.initialised = result == CUDA_SUCCESS;
	}
	cuda_unlock();
	return result;
}

/* May be called before cuInit. */
CUresult cuDriverGetVersion(int *version)
{
	static struct sim_hardware hardware;
	char root[SIM_PATH_MAX];

	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (hardware.cuda_version == 0 && sim_root_of(&cuda, root))
		sim_hardware_load(root, &hardware);
	*version = (int)hardware.cuda_version;
	cuda_unlock();
	return CUDA_SUCCESS;
}
