/*
 * cuMemCreate: physical memory without an address. It lives while a handle of
 * it or a mapping of it does; handles and addresses are reused, so both lead to
 * an object of ours, which counts them.
 *
 * One lock is held over the driver's calls that end or map something, so that
 * what a handle or an address means does not change in between. Creating, which
 * takes the time, is outside of it.
 */
#include <string.h>
#include <sys/mman.h>

#include "fork.h"
#include "functions.h"
#include "memory.h"
#include "table.h"
#include "vmm.h"

#define OBJECTS_MIN 256u

struct object {
	struct aq_gpu *gpu;
	uint32_t units;
	uint32_t holders; /* handle references and mappings; 0: unused */
	uint32_t next_unused;
};

static struct aq_lock vmm_lock;
static struct object *objects; /* the first is AQ_NO_OBJECT */
static uint32_t object_count, object_capacity, unused_objects;

static struct aq_table handles;	 /* to object << 32 | references */
static struct aq_table mappings; /* address to size in pages << 24 | object */

#define PAGE_SHIFT 12u
#define OBJECT_MASK ((UINT64_C(1) << AQ_OBJECT_BITS) - 1)

void aq_vmm_lock(void)
{
	aq_lock(&vmm_lock);
}

void aq_vmm_unlock(void)
{
	aq_unlock(&vmm_lock);
}

static bool grow_objects(void)
{
	AQ_KEEP_ERRNO;
	uint32_t capacity = object_capacity ? object_capacity * 2 : OBJECTS_MIN;
	void *memory;

	if (capacity > OBJECT_MASK)
		return false;
	memory = mmap(NULL, capacity * sizeof(*objects),
		      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (memory == MAP_FAILED)
		return false;
	if (objects) {
		memcpy(memory, objects, object_count * sizeof(*objects));
		munmap(objects, object_capacity * sizeof(*objects));
	} else {
		object_count = 1;
	}
	objects = memory;
	object_capacity = capacity;
	return true;
}

/* An object with one holder, or AQ_NO_OBJECT when our own memory is short. */
static uint32_t object_new(struct aq_gpu *gpu, uint32_t units)
{
	uint32_t i = unused_objects;

	if (i != AQ_NO_OBJECT)
		unused_objects = objects[i].next_unused;
	else if (object_count < object_capacity || grow_objects())
		i = object_count++;
	else
		return AQ_NO_OBJECT;
	objects[i] = (struct object){ gpu, units, 1, 0 };
	return i;
}

void aq_vmm_hold(uint32_t i)
{
	if (i != AQ_NO_OBJECT)
		objects[i].holders++;
}

void aq_vmm_leave(uint32_t i)
{
	if (i == AQ_NO_OBJECT || --objects[i].holders > 0)
		return;
	aq_release(objects[i].gpu, objects[i].units);
	objects[i].next_unused = unused_objects;
	unused_objects = i;
}

uint32_t aq_vmm_object(CUmemGenericAllocationHandle handle)
{
	struct aq_entry *entry = aq_table_find(&handles, handle);

	return entry ? (uint32_t)(entry->value >> 32) : AQ_NO_OBJECT;
}

/* One more reference to the object by that handle; room has been made. A handle
 * that meant another object was released without our seeing it. */
static void handle_add(CUmemGenericAllocationHandle handle, uint32_t object)
{
	struct aq_entry *entry = aq_table_find(&handles, handle);

	if (entry && entry->value >> 32 != object) {
		uint32_t stale = (uint32_t)(entry->value >> 32);

		for (uint32_t n = (uint32_t)entry->value; n > 0; n--)
			aq_vmm_leave(stale);
		aq_table_remove(&handles, entry);
		entry = NULL;
	}
	if (entry)
		entry->value++;
	else
		aq_table_put(&handles, handle, (uint64_t)object << 32 | 1);
}

static uint64_t mapping_size(const struct aq_entry *mapping)
{
	return mapping->value >> AQ_OBJECT_BITS << PAGE_SHIFT;
}

static uint32_t mapping_object(const struct aq_entry *mapping)
{
	return (uint32_t)(mapping->value & OBJECT_MASK);
}

static void mapping_remove(struct aq_entry *mapping)
{
	uint32_t object = mapping_object(mapping);

	aq_table_remove(&mappings, mapping);
	aq_vmm_leave(object);
}

/* Room has been made. What was mapped there before is not any more. */
static void mapping_add(uint64_t address, uint64_t size, uint32_t object)
{
	struct aq_entry *stale = aq_table_find(&mappings, address);

	aq_vmm_hold(object);
	if (stale)
		mapping_remove(stale);
	aq_table_put(&mappings, address,
		     size >> PAGE_SHIFT << AQ_OBJECT_BITS | object);
}

static bool record_created(CUmemGenericAllocationHandle handle,
			   struct aq_hold *hold)
{
	uint32_t object = AQ_NO_OBJECT;

	aq_lock(&vmm_lock);
	if (aq_table_make_room(&handles, 1))
		object = object_new(hold->gpu, hold->units);
	if (object != AQ_NO_OBJECT) {
		handle_add(handle, object);
		aq_commit(hold, hold->units);
	}
	aq_unlock(&vmm_lock);
	return object != AQ_NO_OBJECT;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *properties,
		     unsigned long long flags)
{
	struct aq_gpu *gpu = NULL;
	struct aq_hold hold;
	CUresult result;

	AQ_ENTER(cuMemCreate);
	if (properties &&
	    properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		result = aq_gpu_of_device(properties->location.id, &gpu);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (!gpu)
		return aq_real.cuMemCreate(handle, size, properties, flags);
	if (!aq_reserve_or_trim(&hold, gpu, aq_units(size)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuMemCreate(handle, size, properties, flags);
	if (result == CUDA_SUCCESS) {
		if (record_created(*handle, &hold))
			return result;
		aq_real.cuMemRelease(*handle);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	aq_commit(&hold, 0);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct aq_entry *entry;
	CUresult result;

	AQ_ENTER(cuMemRelease);
	aq_lock(&vmm_lock);
	result = aq_real.cuMemRelease(handle);
	entry = aq_table_find(&handles, handle);
	if (result == CUDA_SUCCESS && entry) {
		uint32_t object = (uint32_t)(entry->value >> 32);

		if ((uint32_t)--entry->value == 0)
			aq_table_remove(&handles, entry);
		aq_vmm_leave(object);
	}
	aq_unlock(&vmm_lock);
	return result;
}

/* Mappings of handles that are not ours are noted too, by their size, so that a
 * range to unmap can be walked from one mapping to the next. */
CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	AQ_ENTER(cuMemMap);
	aq_lock(&vmm_lock);
	if (aq_table_make_room(&mappings, 1))
		result = aq_real.cuMemMap(pointer, size, offset, handle, flags);
	if (result == CUDA_SUCCESS)
		mapping_add(pointer, size, aq_vmm_object(handle));
	aq_unlock(&vmm_lock);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	CUdeviceptr end = pointer + size;
	struct aq_entry *mapping;
	CUresult result;

	AQ_ENTER(cuMemUnmap);
	aq_lock(&vmm_lock);
	result = aq_real.cuMemUnmap(pointer, size);
	while (result == CUDA_SUCCESS && pointer < end &&
	       (mapping = aq_table_find(&mappings, pointer))) {
		pointer += mapping_size(mapping);
		mapping_remove(mapping);
	}
	aq_unlock(&vmm_lock);
	return result;
}

/* The object mapped at an address anywhere in a mapping. */
static uint32_t object_at(uint64_t address)
{
	for (uint32_t i = 0; i < mappings.capacity; i++) {
		const struct aq_entry *mapping = &mappings.entries[i];

		if (mapping->key &&
		    address - mapping->key < mapping_size(mapping))
			return mapping_object(mapping);
	}
	return AQ_NO_OBJECT;
}

/* The handle may be one that is still held, or a new one. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
				     void *address)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	AQ_ENTER(cuMemRetainAllocationHandle);
	aq_lock(&vmm_lock);
	if (aq_table_make_room(&handles, 1))
		result = aq_real.cuMemRetainAllocationHandle(handle, address);
	if (result == CUDA_SUCCESS) {
		uint32_t object = object_at((uint64_t)(uintptr_t)address);

		if (object != AQ_NO_OBJECT) {
			aq_vmm_hold(object);
			handle_add(*handle, object);
		}
	}
	aq_unlock(&vmm_lock);
	return result;
}

/* Memory of another process costs us nothing, and its handle is none that we
 * know. Of our own memory the driver may give the handle that we have, held once
 * more; under a new one we cannot tell whose it is. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
					void *from, int type)
{
	CUresult result;
	uint32_t object;

	AQ_ENTER(cuMemImportFromShareableHandle);
	aq_lock(&vmm_lock);
	result = aq_real.cuMemImportFromShareableHandle(handle, from, type);
	if (result == CUDA_SUCCESS) {
		object = aq_vmm_object(*handle);
		aq_vmm_hold(object);
		if (object != AQ_NO_OBJECT)
			handle_add(*handle, object);
	}
	aq_unlock(&vmm_lock);
	return result;
}

void aq_vmm_forked(void)
{
	aq_lock_reset(&vmm_lock);
	aq_table_clear(&handles);
	aq_table_clear(&mappings);
	object_count = objects ? 1 : 0;
	unused_objects = AQ_NO_OBJECT;
}
