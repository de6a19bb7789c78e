package deployments

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
)

// stage is one FROM of a Dockerfile and what follows it.
type stage struct {
	image, name  string
	instructions []instruction
}

type instruction struct {
	word string
	rest string
}

// stages reads as much of a Dockerfile as the tests ask about: comments and continued lines, not here-documents.
func stages(t *testing.T, text string) (global []instruction, stages []stage) {
	t.Helper()
	text = regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, "")
	known := []string{"ARG", "FROM", "WORKDIR", "ENV", "COPY", "RUN", "LABEL", "ENTRYPOINT"}
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "":
		case !slices.Contains(known, word):
			t.Fatalf("unknown instruction %q in: %s", word, line)
		case word == "FROM":
			image, name, _ := strings.Cut(rest, " AS ")
			stages = append(stages, stage{image: image, name: name})
		case len(stages) == 0:
			global = append(global, instruction{word, rest})
		default:
			last := &stages[len(stages)-1]
			last.instructions = append(last.instructions, instruction{word, rest})
		}
	}
	return global, stages
}

func readDockerfile(t *testing.T) (global []instruction, all []stage) {
	t.Helper()
	data, err := os.ReadFile("docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	global, all = stages(t, string(data))
	if len(all) != 2 {
		t.Fatalf("got %d stages, want build and image", len(all))
	}
	return global, all
}

// The plugin's defaults and the chart name these paths; no image is built here to look into.
func TestImageHasThePluginsFiles(t *testing.T) {
	_, all := readDockerfile(t)
	build, image := all[0], all[1]
	var script strings.Builder
	for _, i := range build.instructions {
		script.WriteString(i.rest + "\n")
	}
	var got []string
	for _, i := range image.instructions {
		if i.word != "COPY" {
			continue
		}
		fields := strings.Fields(i.rest)
		if len(fields) != 3 || fields[0] != "--from="+build.name || fields[1] != "/out"+fields[2] {
			t.Errorf("COPY %s does not take a file of stage %s to the same path", i.rest, build.name)
			continue
		}
		got = append(got, fields[2])
	}
	slices.Sort(got)
	want := []string{"/usr/bin/aliquot-controller", "/usr/bin/aliquot-kubelet-plugin", "/usr/bin/nvidia-cdi-hook", "/usr/lib/aliquot/libaliquot.so"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, made := range []string{
		"-o /out/usr/bin/aliquot-kubelet-plugin ./cmd/kubelet-plugin",
		"-o /out/usr/bin/aliquot-controller ./cmd/controller",
		"-o /out/usr/bin/nvidia-cdi-hook github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook",
		"make -C cdi/preload OUT=/build/preload",
		"/build/preload/libaliquot.so /out/usr/lib/aliquot/libaliquot.so",
	} {
		if !strings.Contains(script.String(), made) {
			t.Errorf("stage %s does not run %q", build.name, made)
		}
	}
}

func TestImageStartsThePlugin(t *testing.T) {
	_, all := readDockerfile(t)
	var entrypoint []string
	for _, i := range all[1].instructions {
		if i.word == "ENTRYPOINT" {
			if err := json.Unmarshal([]byte(i.rest), &entrypoint); err != nil {
				t.Fatalf("ENTRYPOINT %s: %v", i.rest, err)
			}
		}
	}
	command := only[*appsv1.DaemonSet](t, decode(t, mustTemplate(t))).Spec.Template.Spec.Containers[0].Command
	if diff := cmp.Diff(command, entrypoint); diff != "" {
		t.Errorf("the chart's command and the image's (-chart +image):\n%s", diff)
	}
}

// The toolchain is kept at the image's (GOTOOLCHAIN=local), so the image must be the one that go.mod asks for.
func TestImageIsBuiltWithTheModulesGo(t *testing.T) {
	gomod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(gomod)
	if version == nil {
		t.Fatal("go.mod names no version of Go")
	}
	global, all := readDockerfile(t)
	want := instruction{"ARG", "GO_IMAGE=golang:" + string(version[1]) + "-bookworm"}
	if !slices.Contains(global, want) || all[0].image != "${GO_IMAGE}" {
		t.Errorf("%s %s is not among %v", want.word, want.rest, global)
	}
}

// Each folder that the build copies passes the ignore file, which lets nothing else by.
func TestDockerignoreLetsTheSourceBy(t *testing.T) {
	data, err := os.ReadFile("docker/Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	allowed := regexp.MustCompile(`(?m)^!(.*)$`).FindAllStringSubmatch(string(data), -1)
	passes := func(path string) bool {
		return slices.ContainsFunc(allowed, func(pattern []string) bool {
			return path == pattern[1] || strings.HasPrefix(path, pattern[1]+"/")
		})
	}
	_, all := readDockerfile(t)
	for _, i := range all[0].instructions {
		if i.word != "COPY" {
			continue
		}
		fields := strings.Fields(i.rest)
		for _, source := range fields[:len(fields)-1] {
			if !passes(strings.TrimSuffix(source, "/")) {
				t.Errorf("COPY %s finds nothing: docker/Dockerfile.dockerignore leaves %s out", i.rest, source)
			}
		}
	}
}
