package nvml

import (
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// remedies are what to do about the errors of NVML that administrators meet.
var remedies = map[nvml.Return]string{
	nvml.ERROR_DRIVER_NOT_LOADED:       "load the kernel module (modprobe nvidia), and look at dmesg for why it was not; a driver container loads its own",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded beneath its loaded kernel module: drain the node and reboot it, or load the module anew; then restart the plugin's pod",
	nvml.ERROR_LIBRARY_NOT_FOUND:       "the library cannot be loaded: look for a damaged or incomplete installation of the driver, or one for another architecture",
	nvml.ERROR_NO_PERMISSION:           "leave the plugin's container privileged (kubeletPlugin.containers.plugin.securityContext)",
	nvml.ERROR_GPU_IS_LOST:             "drain the GPU's pods, then reset the GPU (nvidia-smi -r) or reboot the node; look at dmesg for its XID",
}

// Remedy says what an administrator can do about an error of this package, "" if that is not known.
func (n *Node) Remedy(err error) string {
	var ret nvml.Return
	switch {
	case errors.Is(err, errNotFound):
		return "install the NVIDIA driver, or set nvidiaDriverRoot to where it is; a driver container is found once it has mounted its root"
	case errors.As(err, &ret):
		return remedies[ret]
	}
	return ""
}
