package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// Listen opens a control socket. The path may be longer than the kernel allows
// an address to be: it is reached through its open directory.
func Listen(path string) (net.Listener, error) {
	var listener net.Listener
	err := throughDirectory(path, func(short string) (err error) {
		listener, err = net.Listen("unix", short)
		return err
	})
	if unixListener, ok := listener.(*net.UnixListener); ok {
		unixListener.SetUnlinkOnClose(false) // the short name means nothing later
	}
	return listener, err
}

// Serve answers requests until the listener closes: GET / for the processes,
// POST /<name>/start, /<name>/stop and /<name>/kill.
func (s *Set) Serve(listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(s.Status())
	})
	mux.HandleFunc("POST /{name}/start", verb(s.Start))
	mux.HandleFunc("POST /{name}/stop", verb(s.Stop))
	mux.HandleFunc("POST /{name}/kill", verb(s.Kill))
	return http.Serve(listener, mux)
}

func verb(do func(name string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r.PathValue("name")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

// Client asks the supervisor that listens on a socket.
type Client struct {
	Socket string
}

// Status tells of every process.
func (c Client) Status(ctx context.Context) ([]Status, error) {
	var statuses []Status
	body, err := c.request(ctx, http.MethodGet, "/")
	if err != nil {
		return nil, err
	}
	return statuses, json.Unmarshal(body, &statuses)
}

// Start starts a process.
func (c Client) Start(ctx context.Context, name string) error {
	_, err := c.request(ctx, http.MethodPost, "/"+name+"/start")
	return err
}

// Stop ends a process and returns when it is gone.
func (c Client) Stop(ctx context.Context, name string) error {
	_, err := c.request(ctx, http.MethodPost, "/"+name+"/stop")
	return err
}

// Kill ends a process without asking it, and returns when it is gone.
func (c Client) Kill(ctx context.Context, name string) error {
	_, err := c.request(ctx, http.MethodPost, "/"+name+"/kill")
	return err
}

func (c Client) request(ctx context.Context, method, path string) ([]byte, error) {
	transport := &http.Transport{DialContext: c.dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask supervisor %s: %w", c.Socket, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(body)))
	}
	return body, err
}

func (c Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var conn net.Conn
	err := throughDirectory(c.Socket, func(short string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

func throughDirectory(path string, use func(short string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
