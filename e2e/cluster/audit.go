package cluster

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditPolicy has the API server note what service accounts outside of its own
// namespace ask for. A watch is noted when it begins and when it ends.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: [system:serviceaccounts:kube-system]
- level: Metadata
  userGroups: [system:serviceaccounts]
`

func (p *plan) writeAuditPolicy() error {
	return os.WriteFile(p.path("audit-policy.yaml"), []byte(auditPolicy), 0o644)
}

// Requests reads what the service accounts of a namespace asked the API server
// for, as far as it was allowed.
func (c *Cluster) Requests(namespace string) ([]auditv1.Event, error) {
	file, err := os.Open(c.plan.log("audit"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var requests []auditv1.Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // where an API server was killed, a line may be cut short
		}
		if strings.HasPrefix(event.User.Username, "system:serviceaccount:"+namespace+":") && event.Annotations["authorization.k8s.io/decision"] == "allow" {
			requests = append(requests, event)
		}
	}
	return requests, lines.Err()
}
