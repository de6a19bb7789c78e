// Package cluster runs a real Kubernetes cluster as plain processes of this
// machine, for tests and for the demo: etcd, the API server, the controllers,
// the scheduler, and for each node kubelet, containerd and runc, all built from
// source by package programs. It needs Linux and root; it needs no container
// engine, registry or network. It is not for production.
//
// # Processes
//
// Each cluster is a tree:
//
//	starter               the test or the tool that called Start
//	└─ keeper             outlives a crash of the starter, and cleans up
//	   └─ init            pid 1 of the cluster: own pid, mount, network, ipc and uts namespaces
//	      ├─ etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//	      └─ node         pid 1 of each node: own pid, mount, ipc, uts and cgroup namespaces
//	         └─ containerd, kubelet, and the containers
//
// Killing an init removes everything below it, whatever state it is in: the
// kernel ends a pid namespace with its first process, and mounts and network
// go with their last user. What remains are cgroups and files, which the keeper
// removes; if it was killed too, its init dies with it, and the next Start or
// Clean sweeps.
//
// # Nodes
//
// A node sees a root of its own: this machine's /usr, read-only, and its own
// /etc, /var, /run and /tmp, so that every program works at its default paths
// and two nodes do not meet. Its processes are the roots of a fresh cgroup view.
//
// All nodes share the cluster's network namespace. Each has an address of its
// own on lo, where its kubelet listens; pods are joined by CNI's ptp, so every
// pod reaches every pod and node. Two pods with hostNetwork and the same port do
// not fit into one cluster.
//
// # Services
//
// There is no kube-proxy and no cluster DNS. The address of the service
// `kubernetes` is an address of the API server itself, so clients in pods work
// unchanged. The API server calls webhooks and aggregated APIs at their
// endpoints' own addresses. Other services' addresses lead nowhere.
package cluster
