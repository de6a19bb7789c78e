package gpu

// Process is a process of this node that has a context on a GPU.
type Process struct {
	PID   int    // as the host sees it
	Bytes uint64 // of the GPU's memory, contexts and code included
}

// Utilization is one of the samples that the NVIDIA driver takes of a process on a GPU.
type Utilization struct {
	PID       int    // as the host sees it
	TimeUS    uint64 // when the sample was taken, µs since the epoch
	SMPercent uint32 // of the second before TimeUS in which a kernel of the process ran, whole percents
}
