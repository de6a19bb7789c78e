package cluster

import (
	"net"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"aliquot.dev/aliquot/e2e/cluster/internal/pki"
)

// writeCredentials makes the authority, the certificates and the kubeconfigs
// of all components.
func (p *plan) writeCredentials() error {
	if err := os.MkdirAll(p.path("pki"), 0o755); err != nil {
		return err
	}
	authority, err := pki.NewAuthority("aliquot-cluster-" + p.ID)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.pki("ca.crt"), authority.PEM, 0o644); err != nil {
		return err
	}
	if err := p.writeTokenKeys(); err != nil {
		return err
	}
	if err := p.writeFrontProxy(); err != nil {
		return err
	}
	if err := p.writeServerPairs(authority); err != nil {
		return err
	}
	for _, component := range []string{"kube-controller-manager", "kube-scheduler"} {
		subject := pki.Subject{User: "system:" + component}
		if err := writeKubeconfig(p.path(component+".conf"), apiServerInside, authority, subject); err != nil {
			return err
		}
	}
	admin := pki.Subject{User: "admin", Groups: []string{"system:masters"}}
	return writeKubeconfig(p.path(kubeconfigFile), "https://"+p.Address, authority, admin)
}

// writeTokenKeys makes the keys that sign and check service account tokens.
func (p *plan) writeTokenKeys() error {
	private, public, err := pki.SigningKey()
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.pki("tokens.key"), private, 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.pki("tokens.pub"), public, 0o644)
}

// frontProxyUser is who the API server is to aggregated APIs.
const frontProxyUser = "front-proxy"

// writeFrontProxy makes what the API server vouches with for users whom it
// passes on. The authority is one of its own: whoever it signs may claim to be
// anybody.
func (p *plan) writeFrontProxy() error {
	authority, err := pki.NewAuthority(frontProxyUser)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.pki("front-proxy-ca.crt"), authority.PEM, 0o644); err != nil {
		return err
	}
	pair, err := authority.Issue(pki.Subject{User: frontProxyUser})
	if err != nil {
		return err
	}
	return pair.Write(p.pki("front-proxy"))
}

// writeServerPairs makes the API server's own pair, the one it shows to
// kubelets, and each kubelet's.
func (p *plan) writeServerPairs(authority *pki.Authority) error {
	subjects := map[string]pki.Subject{
		p.pki("kube-apiserver"): {
			User:  "kube-apiserver",
			Names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			IPs:   []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(serviceAddress), net.ParseIP(controlAddress)},
		},
		p.pki("kubelet-client"): {User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
	}
	for i, node := range p.Nodes {
		etc := p.node(node.Name, "etc/kubernetes")
		if err := os.MkdirAll(etc, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(etc+"/ca.crt", authority.PEM, 0o644); err != nil {
			return err
		}
		subjects[etc+"/kubelet"] = pki.Subject{User: node.Name, Names: []string{node.Name}, IPs: []net.IP{net.ParseIP(nodeAddress(i))}}
		client := pki.Subject{User: "system:node:" + node.Name, Groups: []string{"system:nodes"}}
		if err := writeKubeconfig(etc+"/kubelet.conf", apiServerInside, authority, client); err != nil {
			return err
		}
	}
	for path, subject := range subjects {
		pair, err := authority.Issue(subject)
		if err != nil {
			return err
		}
		if err := pair.Write(path); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes a kubeconfig that holds its credentials itself, so
// that it works from any namespace.
func writeKubeconfig(path, server string, authority *pki.Authority, subject pki.Subject) error {
	pair, err := authority.Issue(subject)
	if err != nil {
		return err
	}
	const name = "aliquot"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority.PEM}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}
