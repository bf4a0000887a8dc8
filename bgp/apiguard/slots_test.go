package apiguard

import (
	"context"
	"testing"
	"time"
)

func TestOthersDoNotKeepRootOut(t *testing.T) {
	s := NewSlots(2, 3)
	take := func(uid uint32, want bool) (release func()) {
		t.Helper()
		release, ok := s.Take(uid)
		if ok != want {
			t.Errorf("user %d gets a slot: %t, want %t", uid, ok, want)
		}
		return release
	}
	take(1, true)
	release := take(1, true)
	take(1, false) // has two
	take(2, true)
	take(3, false) // the others have three
	take(0, true)
	take(0, true)
	take(0, false)
	if s.Busy() != 5 {
		t.Errorf("%d slots are taken, want 5", s.Busy())
	}
	release()
	release() // counts once
	take(3, true)
	take(4, false)
}

func TestWait(t *testing.T) {
	s := NewSlots(1, 1)
	release, err := s.Wait(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Wait(short, 8); err == nil {
		t.Error("a slot of another is taken")
	}
	got := make(chan error)
	for range 3 { // one after the other
		go func() {
			release, err := s.Wait(t.Context(), 8)
			if err == nil {
				release()
			}
			got <- err
		}()
	}
	release()
	for range 3 {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
}
