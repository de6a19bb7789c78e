package cluster

import (
	"aliquot.dev/aliquot/e2e/cluster/internal/supervise"
)

// Components limit their own requests, by default so low that the controllers
// take seconds to start.
const (
	fastClientQPS   = "kube-api-qps=500"
	fastClientBurst = "kube-api-burst=1000"
)

// component describes one process of the control plane, whose flags are given
// without their leading dashes.
func (p *plan) component(name string, flags ...string) supervise.Process {
	args := []string{name}
	for _, flag := range flags {
		args = append(args, "--"+flag)
	}
	return supervise.Process{
		Name: name,
		Path: p.program(name),
		Args: args,
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		Log:  p.log(name),
	}
}

func (p *plan) etcd() supervise.Process {
	return p.component("etcd",
		"data-dir="+p.path("etcd"),
		"listen-client-urls=http://127.0.0.1:2379",
		"advertise-client-urls=http://127.0.0.1:2379",
		"listen-peer-urls=http://127.0.0.1:2380",
		// The data need not survive the machine, and syncs are most of its time.
		"unsafe-no-fsync",
		"log-level=warn",
	)
}

func (p *plan) apiServer() supervise.Process {
	return p.component("kube-apiserver",
		"etcd-servers=http://127.0.0.1:2379",
		"bind-address=0.0.0.0",
		"secure-port=443",
		"advertise-address="+controlAddress,
		"service-cluster-ip-range="+serviceRange,
		"client-ca-file="+p.pki("ca.crt"),
		"tls-cert-file="+p.pki("kube-apiserver.crt"),
		"tls-private-key-file="+p.pki("kube-apiserver.key"),
		"kubelet-certificate-authority="+p.pki("ca.crt"),
		"kubelet-client-certificate="+p.pki("kubelet-client.crt"),
		"kubelet-client-key="+p.pki("kubelet-client.key"),
		// Nodes' names resolve nowhere.
		"kubelet-preferred-address-types=InternalIP",
		"service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"service-account-signing-key-file="+p.pki("tokens.key"),
		"service-account-key-file="+p.pki("tokens.pub"),
		"requestheader-client-ca-file="+p.pki("front-proxy-ca.crt"),
		"requestheader-allowed-names="+frontProxyUser,
		"requestheader-username-headers=X-Remote-User",
		"requestheader-group-headers=X-Remote-Group",
		"requestheader-extra-headers-prefix=X-Remote-Extra-",
		"proxy-client-cert-file="+p.pki("front-proxy.crt"),
		"proxy-client-key-file="+p.pki("front-proxy.key"),
		"authorization-mode=Node,RBAC",
		"enable-admission-plugins=NodeRestriction",
		"allow-privileged=true",
		"audit-policy-file="+p.path("audit-policy.yaml"),
		"audit-log-path="+p.log("audit"),
		"audit-log-mode=batch",
		// Without kube-proxy, a webhook's service is reached at its endpoints.
		"enable-aggregator-routing=true",
	)
}

func (p *plan) controllerManager() supervise.Process {
	return p.component("kube-controller-manager",
		"kubeconfig="+p.path("kube-controller-manager.conf"),
		"authentication-kubeconfig="+p.path("kube-controller-manager.conf"),
		"authorization-kubeconfig="+p.path("kube-controller-manager.conf"),
		"bind-address=127.0.0.1",
		"leader-elect=false",
		fastClientQPS,
		fastClientBurst,
		"use-service-account-credentials=true",
		"root-ca-file="+p.pki("ca.crt"),
		"service-account-private-key-file="+p.pki("tokens.key"),
	)
}

func (p *plan) scheduler() supervise.Process {
	return p.component("kube-scheduler",
		"kubeconfig="+p.path("kube-scheduler.conf"),
		"authentication-kubeconfig="+p.path("kube-scheduler.conf"),
		"authorization-kubeconfig="+p.path("kube-scheduler.conf"),
		"bind-address=127.0.0.1",
		"leader-elect=false",
		fastClientQPS,
		fastClientBurst,
	)
}
