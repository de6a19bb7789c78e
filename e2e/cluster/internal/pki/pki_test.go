package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIssuedPairServesItsNamesToThoseWhoTrustTheAuthority(t *testing.T) {
	authority := newAuthority(t, "one")
	pair, err := authority.Issue(Subject{User: "server", Groups: []string{"servers"}, Names: []string{"a.test"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "server")
	if err := pair.Write(path); err != nil {
		t.Fatal(err)
	}
	loaded, err := tls.LoadX509KeyPair(path+".crt", path+".key")
	if err != nil {
		t.Fatalf("certificate and key do not belong together: %v", err)
	}
	if diff := cmp.Diff([]string{"servers"}, loaded.Leaf.Subject.Organization); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	tests := map[string]struct {
		trusted *Authority
		host    string
		good    bool
	}{
		"name":            {authority, "a.test", true},
		"address":         {authority, "10.0.0.1", true},
		"other name":      {authority, "b.test", false},
		"other authority": {newAuthority(t, "two"), "a.test", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(test.trusted.PEM)
			_, err := loaded.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: test.host})
			if (err == nil) != test.good {
				t.Errorf("verify %s: %v", test.host, err)
			}
		})
	}
	if info, err := os.Stat(path + ".key"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's permissions are %v, %v", info.Mode(), err)
	}
}

func newAuthority(t *testing.T, name string) *Authority {
	t.Helper()
	authority, err := NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func TestSigningKeyIsAPair(t *testing.T) {
	private, public, err := SigningKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(private)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode(public)
	other, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !key.PublicKey.Equal(other) {
		t.Error("the public key is not the private key's")
	}
}
