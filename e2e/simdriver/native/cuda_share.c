/*
 * Memory that is another's: of another process (handles of allocations and pools
 * as file descriptors, IPC handles of pointers), of another API (external
 * memory), or nobody's (multicast objects, which only stand for the memory that
 * is bound to them). None of it costs anything here. It is counted where it was
 * allocated, and so is gone with that process, other than on a real card.
 *
 * What a descriptor or handle leads to is written in it: a ticket.
 */
#include "cuda_state.h"
#include "ledger.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TICKET_MAGIC 0x54494b54u

enum ticket_kind { TICKET_ALLOCATION = 1, TICKET_POOL, TICKET_POINTER };

struct ticket {
	uint32_t magic, kind;
	uint32_t pid, ledger_index;
	uint64_t number; /* of the handle, or the pointer */
	uint64_t bytes;	 /* of it; of a pool: what it has reserved */
};

_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "ticket");

static struct ticket ticket_of(enum ticket_kind kind, CUdevice device,
			       uint64_t number, uint64_t bytes)
{
	return (struct ticket){ TICKET_MAGIC,
				kind,
				(uint32_t)getpid(),
				cuda.devices[device].ledger_index,
				number,
				bytes };
}

static bool ticket_good(const struct ticket *ticket, enum ticket_kind kind)
{
	return ticket->magic == TICKET_MAGIC && ticket->kind == kind;
}

/* The device as this process counts; -1: it does not see that card. */
static CUdevice device_of(const struct ticket *ticket)
{
	for (int i = 0; i < cuda.device_count; i++)
		if (cuda.devices[i].ledger_index == ticket->ledger_index)
			return i;
	return -1;
}

static bool write_fd(int *fd, const struct ticket *ticket)
{
	*fd = memfd_create("nvidia-sim", MFD_CLOEXEC);
	if (*fd < 0)
		return false;
	if (write(*fd, ticket, sizeof(*ticket)) == sizeof(*ticket))
		return true;
	close(*fd);
	return false;
}

static bool read_fd(void *handle, struct ticket *ticket, enum ticket_kind kind)
{
	int fd = (int)(intptr_t)handle;

	return pread(fd, ticket, sizeof(*ticket), 0) == sizeof(*ticket) &&
	       ticket_good(ticket, kind) && device_of(ticket) >= 0;
}

CUresult cuMemExportToShareableHandle(void *out,
				      CUmemGenericAllocationHandle handle,
				      int type, unsigned long long flags)
{
	CUresult result = cuda_ready();
	struct ticket ticket;

	if (result != CUDA_SUCCESS)
		return result;
	if (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	struct allocation *allocation = allocation_find_locked(handle);
	if (allocation == NULL ||
	    !(allocation_properties(allocation)->requestedHandleTypes & type) ||
	    allocation_properties(allocation)->location.type !=
		    CU_MEM_LOCATION_TYPE_DEVICE)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		ticket = ticket_of(TICKET_ALLOCATION,
				   allocation_properties(allocation)
					   ->location.id,
				   handle, allocation_bytes(allocation));
	cuda_unlock();
	if (result == CUDA_SUCCESS && !write_fd(out, &ticket))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

/* The exporter itself gets its own handle, once more. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
					void *from, int type)
{
	CUresult result = cuda_ready();
	struct ticket ticket;

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !read_fd(from, &ticket, TICKET_ALLOCATION))
		return CUDA_ERROR_INVALID_VALUE;
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = type,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device_of(&ticket) },
	};
	cuda_lock();
	struct allocation *own = ticket.pid == (uint32_t)getpid() ?
					 allocation_find_locked(ticket.number) :
					 NULL;
	if (own == NULL)
		result = allocation_new_locked(handle, ticket.bytes,
					       &properties, false);
	else if (!allocation_retain_locked(own, handle))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	cuda_unlock();
	return result;
}

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool,
					  int type, unsigned long long flags)
{
	CUresult result = cuda_ready();
	struct ticket ticket;
	uint64_t reserved;

	if (result != CUDA_SUCCESS)
		return result;
	if (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuMemPoolGetAttribute(
		pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
	if (result != CUDA_SUCCESS)
		return result;
	ticket = ticket_of(TICKET_POOL, pool_device(pool),
			   (uint64_t)(uintptr_t)pool, reserved);
	return write_fd(out, &ticket) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *from,
					    int type, unsigned long long flags)
{
	CUresult result = cuda_ready();
	struct ticket ticket;

	if (result != CUDA_SUCCESS)
		return result;
	if (pool == NULL || flags != 0 ||
	    type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !read_fd(from, &ticket, TICKET_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	*pool = pool_import_locked(device_of(&ticket), ticket.bytes);
	cuda_unlock();
	return *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* A pointer of another's memory: it has an address, and costs nothing. */
static CUresult foreign_locked(CUdeviceptr *pointer, uint64_t bytes,
			       CUdevice device, CUcontext context)
{
	struct region *region = region_new_locked(REGION_FOREIGN, bytes, device);

	if (region == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region->context = context;
	if (!region_place_locked(region)) {
		region_free_locked(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pointer = region->base;
	return CUDA_SUCCESS;
}

static CUresult open_pointer(CUdeviceptr *pointer, const struct ticket *ticket)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (pointer == NULL || !ticket_good(ticket, TICKET_POINTER) ||
	    device_of(ticket) != context->device)
		return CUDA_ERROR_INVALID_VALUE;
	if (ticket->pid == (uint32_t)getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* for others only */
	cuda_lock();
	result = foreign_locked(pointer, ticket->bytes, context->device,
				context);
	cuda_unlock();
	return result;
}

static CUresult write_pointer(void *out, CUdeviceptr pointer, bool pooled)
{
	CUresult result = cuda_ready();
	struct ticket ticket;

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	struct region *region = region_find_locked(pointer);
	if (region == NULL || region->kind == REGION_HOST ||
	    region->kind == REGION_FOREIGN ||
	    (region->pool != NULL) != pooled)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		ticket = ticket_of(TICKET_POINTER, region->device, pointer,
				   region->bytes);
	cuda_unlock();
	if (result == CUDA_SUCCESS)
		memcpy(out, &ticket, sizeof(ticket));
	return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	return handle == NULL ? CUDA_ERROR_INVALID_VALUE :
				write_pointer(handle, pointer, false);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle,
			       unsigned flags)
{
	struct ticket ticket;

	if (flags != 1) /* lazy peer access, the only one there is */
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&ticket, &handle, sizeof(ticket));
	return open_pointer(pointer, &ticket);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	cuda_lock();
	struct region *region = region_find_locked(pointer);
	result = region != NULL && region->kind == REGION_FOREIGN ?
			 memory_free_locked(pointer) :
			 CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out,
				CUdeviceptr pointer)
{
	return out == NULL ? CUDA_ERROR_INVALID_VALUE :
			     write_pointer(out, pointer, true);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
				CUmemPoolPtrExportData *data)
{
	struct ticket ticket;

	if (data == NULL || !pool_imported(pool))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&ticket, data, sizeof(ticket));
	return open_pointer(pointer, &ticket);
}

struct CUextMemory_st {
	uint64_t bytes;
};

CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (memory == NULL || from == NULL || from->size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	*memory = malloc(sizeof(**memory));
	if (*memory == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*memory)->bytes = from->size;
	return CUDA_SUCCESS;
}

/* The buffer is freed by cuMemFree. */
CUresult cuExternalMemoryGetMappedBuffer(
	CUdeviceptr *pointer, CUexternalMemory memory,
	const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *part)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (pointer == NULL || memory == NULL || part == NULL ||
	    part->size == 0 || part->offset > memory->bytes ||
	    part->size > memory->bytes - part->offset)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = foreign_locked(pointer, part->size, context->device, context);
	cuda_unlock();
	return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (memory == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	free(memory);
	return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
			   const CUmulticastObjectProp *properties)
{
	CUresult result = cuda_ready();
	const CUmemAllocationProp nowhere = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	};

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == NULL || properties == NULL || properties->size == 0 ||
	    properties->size % SIM_BLOCK != 0 || properties->numDevices == 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = allocation_new_locked(handle, properties->size, &nowhere,
				       false);
	cuda_unlock();
	return result;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle multicast,
			      CUdevice device)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	if (allocation_find_locked(multicast) == NULL || !cuda_is_device(device))
		result = CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}

/* What is bound lives on by its own handle and mappings. */
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast,
			    size_t multicast_offset,
			    CUmemGenericAllocationHandle memory,
			    size_t memory_offset, size_t size,
			    unsigned long long flags)
{
	CUresult result = cuda_ready();

	(void)multicast_offset, (void)memory_offset;
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	if (allocation_find_locked(multicast) == NULL || flags != 0 ||
	    allocation_find_locked(memory) == NULL || size == 0)
		result = CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}
