package bus

import (
	"slices"
	"testing"
)

// Subscribers get each value that is published after their subscription, in the order of the subscriptions.
func TestTopic(t *testing.T) {
	var topic Topic[int]
	var got []int
	topic.Publish(1)
	topic.Subscribe(func(n int) { got = append(got, n) })
	topic.Publish(2)
	topic.Subscribe(func(n int) { got = append(got, 10*n) })
	topic.Publish(3)
	if want := []int{2, 3, 30}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The value stays for those who come later, and the next one ends their wait.
func TestLatest(t *testing.T) {
	var latest Latest[string]
	value, next := latest.Get()
	if value != "" {
		t.Errorf("at first it is %q", value)
	}
	go latest.Publish("one")
	<-next
	if value, next = latest.Get(); value != "one" {
		t.Errorf("it is %q, want one", value)
	}
	select {
	case <-next:
		t.Error("a wait ended without a value")
	default:
	}
}
