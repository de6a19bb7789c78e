/*
 * What the files about streams, events, functions and graphs share.
 *
 * A process has one lane to each card: its queue of the compute state. What it
 * submits there is done in that order, whatever the stream; a stream only
 * remembers how much of the lane must be done before it is idle. So "so far"
 * is a number of entries of the lane, here and in cuda_state.h.
 *
 * All of it is under the lock of the process. Nobody holds it while waiting.
 */
#ifndef SIM_CUDA_WORK_H
#define SIM_CUDA_WORK_H

#include "compute.h"
#include "cuda_state.h"

struct capture;

/* A set of a graph's nodes. */
struct nodes {
	CUgraphNode *at;
	size_t count, room;
};

#define STREAM_MAGIC 0x53545245u
#define EVENT_MAGIC 0x45564e54u

struct CUstream_st {
	uint32_t magic;
	uint32_t id; /* tells the streams of this process apart */
	CUcontext context;
	unsigned incarnation;
	bool legacy, blocking; /* blocking: waits for stream 0, and it for this */
	uint64_t last_work;
	struct capture *capture;
	struct nodes front; /* what the next node of a capture depends on */
	CUstream joined;    /* the next one in the same capture */
	CUstream next;	    /* of the thread's own */
};

struct CUevent_st {
	uint32_t magic;
	CUcontext context;
	unsigned incarnation;
	unsigned flags;
	CUdevice device;
	uint64_t work;	  /* 1 + its entry of the lane; 0: never recorded */
	bool settled;	  /* time is known */
	uint64_t time;
	uint64_t capture; /* id of the one that recorded it last, or 0 */
	struct nodes front;
};

/* cuda_work.c: one entry of a lane. */
struct piece {
	enum compute_kind kind;
	uint64_t duration;
	uint32_t other; /* a meeting, or the device of the lane to wait for */
	uint64_t after;
	CUevent event; /* to be told its time, or NULL */
};

/* Puts a piece at the end of the stream. Lets the lock go while there is no
 * room. */
CUresult work_push_locked(CUstream stream, const struct piece *piece);
bool work_done_locked(CUdevice device, uint64_t so_far);
/* Returns when the device has come so far. */
void work_wait(CUdevice device, uint64_t so_far);
/* Whether what the event was recorded after is done; its time then is known. */
bool work_settled_locked(CUevent event);
void work_forget_event_locked(CUevent event);
/* The meeting of that key, or -1. */
int work_meeting_locked(CUdevice device, const char *key, unsigned parties);

/* cuda_kernel.c: what a function does. */
struct kernel {
	uint64_t low, high; /* duration, or the range that it is drawn from */
	uint64_t calls;
	unsigned parties; /* 0: it meets nobody */
	char key[40];
	int meeting; /* -1: not looked up yet */
};

/* Any handle will do: what is none of ours runs for a moment. */
struct kernel *kernel_of_locked(CUfunction function);
/* What the next call does on that device. */
CUresult kernel_piece_locked(struct kernel *kernel, CUdevice device,
			     struct piece *piece);
/* NULL when there is no memory. */
CUfunction function_new_locked(CUmodule module, const char *name);
void function_free_locked(CUfunction function);
bool function_is(CUfunction function);

struct CUfunc_st {
	uint32_t magic;
	bool shaped; /* cuFuncSetBlockShape was called */
	struct kernel kernel;
	CUmodule module;
	CUlibrary library; /* of a kernel, which has no module */
	char *name;
	CUfunction next; /* of its module, or of those to be used again */
};

/* cuda_stream.c: what a handle means to the calling thread. */
CUstream stream_find_locked(CUstream stream, CUresult *result);
/* Stream 0 in a function of the name with _ptsz. */
static inline CUstream per_thread(CUstream stream)
{
	return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* cuda_event.c */
CUresult event_check(CUevent event);
CUresult event_push_locked(CUstream stream, CUevent event);

/* cuda_capture.c */
/* What every call on a stream must ask: *capture gets what takes it instead of
 * the card, or NULL. */
CUresult capture_enter_locked(CUstream stream, struct capture **capture);
/* The same for calls that no capture can take. */
CUresult capture_refuse_locked(CUstream stream);
CUresult capture_kernel_locked(CUstream stream, struct kernel *kernel);
CUresult capture_alloc_locked(CUstream stream, CUdeviceptr *pointer,
			      uint64_t bytes);
CUresult capture_free_locked(CUstream stream, CUdeviceptr pointer);
CUresult capture_record_locked(CUstream stream, CUevent event, bool external);
/* *taken: the capture has it, or it is an error. */
CUresult capture_wait_locked(CUstream stream, CUevent event, bool external,
			     bool *taken);
/* An event that a capture recorded has no state of its own. */
CUresult capture_query_locked(CUevent event);
void capture_leave_locked(CUstream stream);

/* cuda_graph.c */
#define GRAPH_MAGIC 0x47525048u

struct CUgraphNode_st {
	int type;
	CUgraph graph;
	struct nodes before;
	unsigned mark;
	struct kernel kernel;
	CUevent event;
	struct graph_memory *memory; /* of a node that allocates or frees */
};

struct CUgraph_st {
	uint32_t magic;
	unsigned marks;
	struct nodes nodes; /* each after those that it depends on */
	CUgraphExec exec;   /* of a graph with memory: the only one */
	CUdevice device;    /* of its memory */
	bool memory;
};

/* cuda_graph_exec.c: the graph is gone. */
void exec_forget_graph_locked(CUgraphExec exec);

CUgraph graph_new_locked(void);
void graph_free_locked(CUgraph graph);
bool nodes_add(struct nodes *nodes, CUgraphNode node);
bool nodes_copy(struct nodes *to, const struct nodes *from);
void nodes_clear(struct nodes *nodes);
/* Adds a node, which the caller fills in; NULL when there is no memory. */
CUgraphNode graph_add_locked(CUgraph graph, int type,
			     const struct nodes *before);
CUresult graph_add_alloc_locked(CUgraph graph, const struct nodes *before,
				CUdevice device, uint64_t bytes,
				CUgraphNode *node);
CUresult graph_add_free_locked(CUgraph graph, const struct nodes *before,
			       CUdeviceptr pointer, CUgraphNode *node);

/* cuda_graph_memory.c */
struct graph_memory {
	struct region *region;
	unsigned references; /* nodes and executable graphs */
	bool live;	     /* a launch has left it allocated */
};

struct graph_memory *graph_memory_new_locked(CUdevice device, uint64_t bytes);
/* Of the allocation that begins there, or NULL. */
struct graph_memory *graph_memory_find_locked(CUdeviceptr pointer);
void graph_memory_drop_locked(struct graph_memory *memory);
void graph_memory_set_live_locked(struct graph_memory *memory, bool live);
/* Takes what one launch needs, which has at most so many bytes at once. */
bool graph_memory_reserve_locked(CUdevice device, uint64_t most);
/* It is in use until the device has come so far. */
void graph_memory_launched_locked(CUdevice device, uint64_t most,
				  uint64_t so_far);

#endif
