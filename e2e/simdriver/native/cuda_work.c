/* The lanes of this process: submitting to a card and waiting for it. */
#include "cuda_work.h"

/* A forecast is trusted no longer than this: another process may die. */
#define HORIZON UINT64_C(10000000)

struct lane {
	struct compute_queue *queue; /* NULL until something is submitted */
	unsigned index;
	uint64_t tail;
	uint64_t total; /* of all durations */
	CUevent events[COMPUTE_RING]; /* to be told when that entry was done */
};

static struct lane lanes[SIM_MAX_GPUS];
static struct compute *state; /* of all lanes */

/* With the state locked: what does the work of a device. */
static int engine_of(const struct device *device)
{
	if (device->partition.instance == 0)
		return (int)device->ledger_index;
	return compute_engine(state, device->ledger_index,
			      device->partition.compute);
}

static CUresult open_lane(CUdevice device)
{
	struct lane *lane = &lanes[device];

	if (lane->queue != NULL)
		return CUDA_SUCCESS;
	if (compute_self() == 0 || !compute_open(cuda.root, &cuda.hardware))
		return CUDA_ERROR_UNKNOWN;
	uint64_t now = compute_clock();
	state = compute_lock();
	int index = -1, engine = engine_of(&cuda.devices[device]);
	if (engine >= 0)
		index = compute_claim(state, compute_self(), (unsigned)engine,
				      now);
	compute_unlock();
	if (index < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	lane->index = (unsigned)index;
	lane->queue = &state->queues[index];
	return CUDA_SUCCESS;
}

/* Lets the lock of the process go, until the lane may have room. */
static void wait_for_room(struct lane *lane)
{
	uint64_t until = 0, oldest = lane->tail - COMPUTE_RING + 1;

	compute_lock();
	if (lane->queue->done < oldest)
		until = compute_forecast(state, lane->index, oldest,
					 state->now + HORIZON);
	compute_unlock();
	if (until == 0)
		return;
	cuda_unlock();
	compute_sleep(until);
	cuda_lock();
}

static void settle_event(struct lane *lane, CUevent event)
{
	uint64_t number = event->work - 1;

	event->time = compute_entry(state, lane->index, number)->end;
	event->settled = true;
	lane->events[number % COMPUTE_RING] = NULL;
}

/* The place of an entry that is done; its event must keep the time. */
static struct compute_entry *take_place(struct lane *lane, CUevent event)
{
	CUevent *last = &lane->events[lane->tail % COMPUTE_RING];

	if (*last != NULL)
		settle_event(lane, *last);
	*last = event;
	return compute_entry(state, lane->index, lane->tail);
}

CUresult work_push_locked(CUstream stream, const struct piece *piece)
{
	CUcontext context = stream->context;
	struct lane *lane = &lanes[context->device];
	CUresult result = open_lane(context->device);

	if (result != CUDA_SUCCESS)
		return result;
	while (lane->tail >= lane->queue->done + COMPUTE_RING)
		wait_for_room(lane);
	lane->total += piece->duration;
	*take_place(lane, piece->event) = (struct compute_entry){
		.submitted = compute_clock(),
		.duration = piece->duration,
		.total = lane->total,
		.after = piece->after,
		.kind = piece->kind,
		.other = piece->kind == COMPUTE_WAIT ?
				 lanes[piece->other].index :
				 piece->other,
		.stream = stream->id,
	};
	atomic_store_explicit(&lane->queue->tail, ++lane->tail,
			      memory_order_release);
	if (piece->event != NULL)
		piece->event->work = lane->tail;
	stream->last_work = context->last_work = lane->tail;
	if (stream->legacy || stream->blocking)
		context->last_blocking = lane->tail;
	return CUDA_SUCCESS;
}

bool work_done_locked(CUdevice device, uint64_t so_far)
{
	const struct lane *lane = &lanes[device];

	if (so_far == 0 || lane->queue->done >= so_far)
		return true;
	compute_lock();
	compute_unlock();
	return lane->queue->done >= so_far;
}

void work_wait(CUdevice device, uint64_t so_far)
{
	const struct lane *lane = &lanes[device];
	uint64_t until;

	do {
		until = 0;
		cuda_lock();
		if (so_far != 0 && lane->queue->done < so_far) {
			compute_lock();
			if (lane->queue->done < so_far)
				until = compute_forecast(state, lane->index,
							 so_far,
							 state->now + HORIZON);
			compute_unlock();
		}
		cuda_unlock();
		if (until != 0)
			compute_sleep(until);
	} while (until != 0);
}

void work_drain(CUcontext context)
{
	if (context != NULL && context->alive)
		work_wait(context->device, context->last_work);
}

void work_forget_event_locked(CUevent event)
{
	if (event->work == 0 || event->settled)
		return;
	lanes[event->device].events[(event->work - 1) % COMPUTE_RING] = NULL;
}

bool work_settled_locked(CUevent event)
{
	if (event->work == 0 || event->settled)
		return true;
	if (!work_done_locked(event->device, event->work))
		return false;
	settle_event(&lanes[event->device], event);
	return true;
}

int work_meeting_locked(CUdevice device, const char *key, unsigned parties)
{
	if (open_lane(device) != CUDA_SUCCESS)
		return -1;
	compute_lock();
	int meeting = compute_meeting(state, key, parties);
	compute_unlock();
	return meeting;
}
