// Package deployments tests what users install and copy: the Helm chart, the image's Dockerfile and the examples.
// It ships no code. What only a cluster can tell, such as whether a share is enforced, is left to e2e.
package deployments
