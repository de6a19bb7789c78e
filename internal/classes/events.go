package classes

import (
	"crypto/sha256"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// noteLimit is the API server's, in bytes (ValidateEventCreate in k8s.io/kubernetes/pkg/apis/core/validation).
const noteLimit = 1024

// record makes an Event for each note. Events that differ in their note alone are folded into one that keeps the first,
// so each names its note in the path of the related object.
func record(recorder events.EventRecorder, about runtime.Object, kind, reason, action, note string) {
	if len(note) > noteLimit {
		note = strings.ToValidUTF8(note[:noteLimit], "")
	}
	subject, ok := about.(*corev1.ObjectReference)
	if !ok {
		var err error
		if subject, err = reference.GetReference(clientgoscheme.Scheme, about); err != nil {
			return // of a type that is not in the scheme: none of ours
		}
	}
	related := *subject
	related.FieldPath = fmt.Sprintf("%x", sha256.Sum256([]byte(note)))[:16]
	recorder.Eventf(subject, &related, kind, reason, action, "%s", note)
}
