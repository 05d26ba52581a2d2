// Records what all clients of a control plane ask kube-apiserver, and its answers.
//
// It takes the place of kube-apiserver: it starts the real one at another port, and passes on all requests. A folder named by
// KUBEBUILDER_ASSETS has it under the name `kube-apiserver`, and beside it the folder `real` with a link to the real
// one, which takes its own name from that of the link. Each control plane
// writes a file into the folder `records` beside it. Every line is a finished request, or what a watch has sent.
//
// Answers in Protobuf are not asked for, so all answers are JSON.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const certificate, key, tokens = "certs/apiserver.crt", "certs/apiserver.key", "tokens.csv"

// A request with its answer. Bodies are text; those that are not JSON or YAML are in Base64.
type record struct {
	Number   int64               `json:"number"`
	Start    int64               `json:"start"`
	End      int64               `json:"end,omitempty"`
	User     string              `json:"user,omitempty"`
	As       map[string][]string `json:"as,omitempty"`
	Do       string              `json:"do,omitempty"`
	Type     string              `json:"type,omitempty"`
	Accept   string              `json:"accept,omitempty"`
	Agent    string              `json:"agent,omitempty"`
	Body     string              `json:"body,omitempty"`
	Base64   string              `json:"base64,omitempty"`
	Code     int                 `json:"code,omitempty"`
	Warnings []string            `json:"warnings,omitempty"`
	Answer   string              `json:"answer,omitempty"`
	// What a watch has sent at `start`; `number` is that of its request.
	Events string `json:"events,omitempty"`
}

type recorder struct {
	sync.Mutex
	out    *json.Encoder
	number atomic.Int64
	users  map[string]string
}

func now() int64 { return time.Now().UnixMicro() }

func (r *recorder) write(one record) {
	r.Lock()
	defer r.Unlock()
	if err := r.out.Encode(one); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// The name of the user whose token a request has.
func (r *recorder) user(header http.Header) string {
	token := strings.TrimPrefix(header.Get("Authorization"), "Bearer ")
	r.Lock()
	defer r.Unlock()
	if name, ok := r.users[token]; ok {
		return name
	}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		text, _ := base64.RawURLEncoding.DecodeString(parts[1])
		var claims struct {
			Sub string `json:"sub"`
		}
		if json.Unmarshal(text, &claims) == nil {
			return claims.Sub
		}
	}
	return "system:anonymous"
}

func isWatch(request *http.Request) bool {
	watch := request.URL.Query().Get("watch")
	return request.Method == "GET" && (watch == "1" || watch == "true") || request.URL.Query().Get("follow") == "true"
}

// The body of a watch: what is read is recorded as it comes.
type events struct {
	io.ReadCloser
	recorder *recorder
	number   int64
}

func (e events) Read(into []byte) (int, error) {
	n, err := e.ReadCloser.Read(into)
	if n > 0 {
		e.recorder.write(record{Number: e.number, Start: now(), Events: string(into[:n])})
	}
	return n, err
}

type recordKey struct{}

func (r *recorder) prepare(request *httputil.ProxyRequest, target *url.URL) {
	request.Out.URL.Scheme, request.Out.URL.Host = target.Scheme, target.Host
	request.Out.Host = request.In.Host
	request.Out.Header.Del("Accept-Encoding")
	parts := strings.Split(request.In.Header.Get("Accept"), ",")
	kept := parts[:0]
	for _, part := range parts {
		if !strings.Contains(part, "protobuf") && !strings.Contains(part, "cbor") {
			kept = append(kept, part)
		}
	}
	if len(kept) == 0 {
		kept = []string{"application/json"}
	}
	request.Out.Header.Set("Accept", strings.Join(kept, ","))
}

func (r *recorder) serve(proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		one := &record{
			Number: r.number.Add(1),
			Start:  now(),
			User:   r.user(request.Header),
			Do:     request.Method + " " + request.URL.RequestURI(),
			Type:   request.Header.Get("Content-Type"),
			Accept: request.Header.Get("Accept"),
			Agent:  request.Header.Get("User-Agent"),
		}
		for name, values := range request.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				if one.As == nil {
					one.As = map[string][]string{}
				}
				one.As[strings.ToLower(name)] = values
			}
		}
		if request.Header.Get("Upgrade") == "" && request.ContentLength != 0 {
			body, err := io.ReadAll(request.Body)
			if err != nil {
				http.Error(response, err.Error(), http.StatusBadRequest)
				return
			}
			request.Body = io.NopCloser(bytes.NewReader(body))
			if strings.Contains(one.Type, "json") || strings.Contains(one.Type, "yaml") {
				one.Body = string(body)
			} else {
				one.Base64 = base64.StdEncoding.EncodeToString(body)
			}
		}
		proxy.ServeHTTP(response, request.WithContext(contextWith(request, one)))
	})
}

func (r *recorder) answered(response *http.Response) error {
	one, _ := response.Request.Context().Value(recordKey{}).(*record)
	if one == nil {
		return nil
	}
	one.Accept = response.Request.Header.Get("Accept")
	one.Code, one.Warnings = response.StatusCode, response.Header.Values("Warning")
	if response.StatusCode == http.StatusSwitchingProtocols {
		one.End = now()
		r.write(*one)
		return nil
	}
	if isWatch(response.Request) && response.StatusCode == http.StatusOK {
		one.End = now()
		r.write(*one)
		response.Body = events{response.Body, r, one.Number}
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	one.End, one.Answer = now(), string(body)
	r.write(*one)
	return nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Reads the names of the users by their tokens.
func users() map[string]string {
	known := map[string]string{}
	file, err := os.Open(tokens)
	check(err)
	defer file.Close()
	reader := csv.NewReader(file)
	reader.FieldsPerRecord = -1
	lines, err := reader.ReadAll()
	check(err)
	for _, line := range lines {
		known[line[0]] = line[1]
	}
	return known
}

func main() {
	self, err := os.Executable()
	check(err)
	folder := filepath.Dir(self)
	real := filepath.Join(folder, "real", "kube-apiserver")
	if len(os.Args) < 2 || os.Args[1] == "--version" {
		check(syscall.Exec(real, append([]string{real}, os.Args[1:]...), os.Environ()))
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	port := free.Addr().(*net.TCPAddr).Port
	check(free.Close())
	public := ""
	args := []string{}
	for _, arg := range os.Args[1:] {
		if rest, ok := strings.CutPrefix(arg, "--secure-port="); ok {
			public, arg = rest, fmt.Sprintf("--secure-port=%d", port)
		}
		args = append(args, arg)
	}
	// The real server ends with this process: the kernel watches the thread that starts it.
	runtime.LockOSThread()
	child := exec.Command(real, args...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(child.Start())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for one := range signals {
			child.Process.Signal(one)
		}
	}()
	go func() {
		target := &url.URL{Scheme: "https", Host: fmt.Sprintf("127.0.0.1:%d", port)}
		for {
			if connection, err := net.Dial("tcp", target.Host); err == nil {
				connection.Close()
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		file, err := os.Create(filepath.Join(folder, "records", fmt.Sprintf("%d.jsonl", os.Getpid())))
		check(err)
		r := &recorder{out: json.NewEncoder(file), users: users()}
		r.out.SetEscapeHTML(false)
		proxy := &httputil.ReverseProxy{
			Rewrite:        func(request *httputil.ProxyRequest) { r.prepare(request, target) },
			FlushInterval:  -1,
			ModifyResponse: r.answered,
			Transport: &http.Transport{
				TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
				MaxIdleConnsPerHost: 64,
			},
		}
		server := http.Server{Addr: "127.0.0.1:" + public, Handler: r.serve(proxy)}
		check(server.ListenAndServeTLS(certificate, key))
	}()
	if err := child.Wait(); err != nil {
		os.Exit(1)
	}
}

func contextWith(request *http.Request, one *record) context.Context {
	return context.WithValue(request.Context(), recordKey{}, one)
}
