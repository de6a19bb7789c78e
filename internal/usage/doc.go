// Package usage says what the shares of a node really use of their GPUs, and tells each share's preload library what
// follows from it: it joins the accounting regions with the processes that NVML knows, and decides how much of a GPU's
// time each share may use now. It holds nobody to a limit itself, and it knows neither claims nor the API.
package usage
