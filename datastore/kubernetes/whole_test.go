package kubernetes

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// listOf returns a response of the API with pods.
func listOf(tb testing.TB, pods ...corev1.Pod) []byte {
	tb.Helper()
	list := &corev1.PodList{Items: pods}
	list.ResourceVersion, list.Continue = "4711", "more"
	inner, err := list.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	outer := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Raw: inner}
	text, err := outer.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	return append(slices.Clone(magic), text...)
}

// readInPieces reads a list a few bytes at a time.
func readInPieces(raw []byte) (items [][]byte, meta listMeta, err error) {
	meta, err = protobufList(bufio.NewReaderSize(bytes.NewReader(raw), 16), func(item []byte) error {
		items = append(items, slices.Clone(item))
		return nil
	})
	return items, meta, err
}

func TestListThatComes(t *testing.T) {
	pod := fullObject[corev1.Pod](t, "pod")
	for _, n := range []int{0, 1, 3} {
		raw := listOf(t, slices.Repeat([]corev1.Pod{*pod}, n)...)
		var want [][]byte
		wanted, err := protobufItems(raw, func(item []byte) error {
			want = append(want, slices.Clone(item))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		items, meta, err := readInPieces(raw)
		if err != nil || meta != wanted || !slices.EqualFunc(items, want, bytes.Equal) || len(items) != n {
			t.Errorf("%d pods: %d items, %+v, %v", n, len(items), meta, err)
		}
	}
}

// A cut connection must not be taken for the end of a list: all later objects would count as deleted.
func TestListThatIsCut(t *testing.T) {
	small := corev1.Pod{}
	small.Name = "a"
	raw := listOf(t, small, small, small)
	complete := 0 // behind the list there is no more than two empty fields
	for n := range raw {
		items, _, err := readInPieces(raw[:n])
		switch {
		case err == nil && len(items) == 3:
			complete++
		case err == nil:
			t.Errorf("%d of %d bytes are a list of %d", n, len(raw), len(items))
		}
	}
	if complete > 2 {
		t.Errorf("%d lists that are cut count as complete", complete)
	}
}

// The same for JSON.
func TestJSONListThatIsCut(t *testing.T) {
	const text = `{"kind":"L","metadata":{"resourceVersion":"7","continue":"c"},"items":[{"a":[{}]},{"b":"]}"},{}],"x":{}}`
	read := func(text string) (items []string, meta listMeta, err error) {
		meta, err = jsonList(strings.NewReader(text), func(item []byte) error {
			items = append(items, string(item))
			return nil
		})
		return items, meta, err
	}
	items, meta, err := read(text)
	if want := []string{`{"a":[{}]}`, `{"b":"]}"}`, `{}`}; err != nil || meta != (listMeta{"7", "c"}) ||
		!slices.Equal(items, want) {
		t.Errorf("%q, %+v, %v", items, meta, err)
	}
	for n := range text {
		if items, meta, err := read(text[:n]); !errors.Is(err, errMangled) {
			t.Errorf("%s: %d items, %+v, %v", text[:n], len(items), meta, err)
		}
	}
	for _, x := range []string{"[]", `{"items":{}}`, `{"items":[1,}`} {
		if _, _, err := read(x); !errors.Is(err, errMangled) {
			t.Errorf("%s: %v", x, err)
		}
	}
	if items, _, err := read(`{"items":null,"metadata":{}}`); len(items) > 0 || err != nil {
		t.Errorf("no list: %q, %v", items, err)
	}
}

func FuzzListThatComes(f *testing.F) {
	small := corev1.Pod{}
	small.Name = "a"
	f.Add(listOf(f, small, small))
	f.Add(listOf(f))
	f.Fuzz(func(t *testing.T, raw []byte) {
		items, meta, err := readInPieces(raw)
		if err != nil {
			return
		}
		var want [][]byte
		wanted, wantErr := protobufItems(raw, func(item []byte) error {
			want = append(want, slices.Clone(item))
			return nil
		})
		if wantErr == nil && (wanted != meta || !slices.EqualFunc(items, want, bytes.Equal)) {
			t.Errorf("%d items, %+v; in memory %d, %+v", len(items), meta, len(want), wanted)
		}
	})
}
