package bgpsecrets

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const (
	namespace = "kube-system"
	user      = "system:serviceaccount:kube-system:manx-node"
	limit     = time.Minute
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is an API in which a role may read the Secret bgp by its name, and nothing else.
type rig struct {
	*testing.T
	server *apiserver.Server
	admin  *kubernetes.Clientset
	logs   *observer.ObservedLogs
	file   string // of kept passwords
}

func newRig(t *testing.T) *rig {
	server := apiserver.Start(t)
	server.AddUsers(t, user)
	admin, err := kubernetes.NewForConfig(server.Config(apiserver.Admin))
	must(t, err)
	r := &rig{T: t, server: server, admin: admin}
	role := metav1.ObjectMeta{Namespace: namespace, Name: "passwords"}
	_, err = admin.RbacV1().Roles(namespace).Create(t.Context(),
		&rbacv1.Role{ObjectMeta: role, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"list", "watch"}, APIGroups: []string{""}, Resources: []string{"secrets"},
			ResourceNames: []string{"bgp"}}}}, metav1.CreateOptions{})
	must(t, err)
	r.allow()
	return r
}

func (r *rig) allow() {
	_, err := r.admin.RbacV1().RoleBindings(namespace).Create(r.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "passwords"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "passwords"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: user}}},
		metav1.CreateOptions{})
	must(r.T, err)
}

// put writes a Secret with one key.
func (r *rig) put(name, key, value string) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{key: []byte(value)}}
	if _, err := r.admin.CoreV1().Secrets(namespace).Update(r.Context(), s, metav1.UpdateOptions{}); err == nil {
		return
	}
	_, err := r.admin.CoreV1().Secrets(namespace).Create(r.Context(), s, metav1.CreateOptions{})
	must(r.T, err)
}

// open makes Secrets with the settings of an API.
func (r *rig) open(config *rest.Config) *Secrets {
	client, err := typedcorev1.NewForConfig(config)
	must(r.T, err)
	core, logs := observer.New(zapcore.DebugLevel)
	r.logs = logs
	s := New(Config{Client: client, Namespace: namespace, File: r.file, Server: "here", Log: zap.New(core)})
	r.Cleanup(s.Close)
	return s
}

// await waits for a password, and for the reason why it cannot be read. It reads again only after a signal of Changed,
// as the daemon does.
func await(t *testing.T, s *Secrets, secret, key, want, reason string) {
	t.Helper()
	end := time.After(limit)
	for {
		got, err := s.Password(secret, key)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got == want && strings.Contains(text, reason) && (reason != "" || text == "") {
			return
		}
		select {
		case <-s.Changed():
		case <-end:
			t.Fatalf("%s/%s is %q, %q; want %q, %q", secret, key, got, text, want, reason)
		}
	}
}

// TestSecrets runs its tests with one API, one after the other.
func TestSecrets(t *testing.T) {
	r := newRig(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *rig)
	}{
		{"created, changed, deleted", testPasswordsOfSecrets},
		{"without the API or the right", testPasswordsWithoutTheAPI},
		{"kept for the next process", testKeptPasswords},
		{"named by no decision", testUnnamedSecrets},
	} {
		t.Run(test.name, func(t *testing.T) {
			own := *r
			own.T = t
			test.run(t, &own)
		})
	}
}

func testPasswordsOfSecrets(t *testing.T, r *rig) {
	r.put("bgp", "tor", "first\n")
	r.put("other", "tor", "not ours to read")
	s := r.open(r.server.Config(user))
	if got, err := s.Password("bgp", "tor"); got != "first" || err != nil {
		t.Fatalf("at once: %q, %v", got, err)
	}
	await(t, s, "bgp", "absent", "", "the Secret kube-system/bgp has no such key")
	await(t, s, "other", "tor", "", `secrets "other" is forbidden`)
	await(t, s, "Not A Name", "tor", "", "cannot be the name of a Secret")
	await(t, s, "bgp,metadata.name!=x", "tor", "", "cannot be the name of a Secret")

	r.put("bgp", "tor", "second")
	await(t, s, "bgp", "tor", "second", "")
	for value, reason := range map[string]string{" \n": "is empty", strings.Repeat("x", 81): "takes at most 80"} {
		r.put("bgp", "tor", value)
		await(t, s, "bgp", "tor", "second", reason)
	}
	must(t, r.admin.CoreV1().Secrets(namespace).Delete(t.Context(), "bgp", metav1.DeleteOptions{}))
	await(t, s, "bgp", "tor", "second", "there is no Secret kube-system/bgp")
	await(t, s, "bgp", "absent", "", "there is no Secret kube-system/bgp")
	r.put("bgp", "tor", "third")
	await(t, s, "bgp", "tor", "third", "")
	for _, e := range r.logs.All() {
		if text := e.Message; strings.Contains(text, "third") || strings.Contains(text, "second") {
			t.Errorf("the log has a password: %s", text)
		}
	}
}

// Without the right or without the API, the password that was read last stays in use. One that was never read is
// missing.
func testPasswordsWithoutTheAPI(t *testing.T, r *rig) {
	r.put("bgp", "tor", "good")
	line := apiserver.NewLine(t, r.server.URL)
	s := r.open(r.server.ConfigAt(line.URL, user))
	await(t, s, "bgp", "tor", "good", "")

	must(t, r.admin.RbacV1().RoleBindings(namespace).Delete(t.Context(), "passwords", metav1.DeleteOptions{}))
	line.Cut() // ends the watch, which would go on with the rights that it began with
	line.Mend()
	await(t, s, "bgp", "tor", "good", `secrets "bgp" is forbidden`)
	fresh := r.open(r.server.Config(user))
	await(t, fresh, "bgp", "tor", "", `secrets "bgp" is forbidden`)
	if every := s.EndDecision(); every == 0 || s.Outdated() {
		t.Errorf("checked every %v, outdated %t: want checks, and no change", every, s.Outdated())
	}
	s.mu.Lock()
	s.followed["bgp"].reported = false // as it was while the error was new
	s.mu.Unlock()
	if !s.Outdated() {
		t.Error("an error that lasts is not reported")
	}
	r.allow()
	await(t, s, "bgp", "tor", "good", "")
	await(t, fresh, "bgp", "tor", "good", "")

	line.Cut()
	r.put("bgp", "tor", "rotated")
	if got, _ := s.Password("bgp", "tor"); got != "good" {
		t.Errorf("without the API: %q", got)
	}
	away := r.open(r.server.ConfigAt(line.URL, user))
	await(t, away, "bgp", "tor", "", `Get "`+line.URL) // refused, reset, or EOF
	line.Mend()
	await(t, s, "bgp", "tor", "rotated", "")
	await(t, away, "bgp", "tor", "rotated", "")
}

// A process that starts without the API has the passwords of the one before at once, if these were kept in memory. The
// API's answer counts as soon as it comes.
func testKeptPasswords(t *testing.T, r *rig) {
	folder, err := os.MkdirTemp("/dev/shm", "manx-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(folder)) })
	r.file = filepath.Join(folder, "passwords")
	r.put("bgp", "tor", "kept")
	s := r.open(r.server.Config(user))
	await(t, s, "bgp", "tor", "kept", "")
	s.EndDecision()
	if info, err := os.Stat(r.file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	written, err := os.ReadFile(r.file)
	must(t, err)

	line := apiserver.NewLine(t, r.server.URL)
	line.Cut()
	next := r.open(r.server.ConfigAt(line.URL, user))
	next.Hurry()
	began := time.Now()
	if got, err := next.Password("bgp", "tor"); got != "kept" || err == nil || time.Since(began) >= patience {
		t.Errorf("without the API: %q, %v after %v", got, err, time.Since(began))
	}
	next.EndDecision()
	if now, err := os.ReadFile(r.file); err != nil || string(now) != string(written) {
		t.Errorf("the file is now %s, %v", now, err)
	}
	must(t, r.admin.CoreV1().Secrets(namespace).Delete(t.Context(), "bgp", metav1.DeleteOptions{}))
	line.Mend()
	await(t, next, "bgp", "tor", "", "there is no Secret")
	next.EndDecision()
	if now, err := os.ReadFile(r.file); err != nil || strings.Contains(string(now), "kept") {
		t.Errorf("the file is now %s, %v", now, err)
	}

	for content, reason := range map[string]string{"{": "unexpected end", strings.Replace(string(written), "here",
		"there", 1): "is of the namespace kube-system at there"} {
		must(t, os.WriteFile(r.file, []byte(content), 0o600))
		if refused := r.open(r.server.ConfigAt(line.URL, user)); len(refused.kept) > 0 || r.logs.FilterMessageSnippet(
			"cannot be used").Len() != 1 || !strings.Contains(r.logs.All()[0].ContextMap()["error"].(string), reason) {
			t.Errorf("%s is used, or the log is %v", content, r.logs.All())
		}
	}

	disk := t.TempDir()
	if inMemory(disk) == nil {
		return // the whole system is in memory
	}
	r.put("bgp", "tor", "kept")
	r.file = filepath.Join(disk, "passwords")
	onDisk := r.open(r.server.Config(user))
	await(t, onDisk, "bgp", "tor", "kept", "")
	onDisk.EndDecision()
	if _, err := os.Stat(r.file); !errors.Is(err, fs.ErrNotExist) ||
		r.logs.FilterMessageSnippet("are not kept").Len() != 1 {
		t.Errorf("a password on a disk: %v; log: %v", err, r.logs.All())
	}
}

// A Secret is not followed after its last use, and is followed again on its next use.
func testUnnamedSecrets(t *testing.T, r *rig) {
	r.put("bgp", "tor", "one")
	s := r.open(r.server.Config(user))
	await(t, s, "bgp", "tor", "one", "")
	s.forgetUnnamed(time.Now())
	if len(s.followed) != 1 {
		t.Error("the decision under way named it")
	}
	if every := s.EndDecision(); every != 0 || s.Outdated() {
		t.Errorf("checked every %v, although the API reports changes", every)
	}
	s.forgetUnnamed(time.Now())
	if len(s.followed) != 1 {
		t.Error("the last decision named it, however long ago that was")
	}
	s.EndDecision() // of a decision that named nothing
	s.forgetUnnamed(time.Now().Add(-forget))
	if len(s.followed) != 1 {
		t.Error("it was named a moment ago")
	}
	s.forgetUnnamed(time.Now())
	if len(s.followed) != 0 {
		t.Error("it is still followed")
	}
	r.put("bgp", "tor", "two")
	await(t, s, "bgp", "tor", "two", "")
}
