package kubernetes

import (
	"hash/maphash"
	"maps"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// latest recognizes versions of other nodes' pods that differ from the version before in no field that is kept, which
// are five of the nine in the life of a pod. It need not decode them. The hash has a random seed, so that nobody can
// make a change without an effect on it.
type latest struct {
	seed        maphash.Seed
	room        []byte
	now, before map[string]uint64 // hashes by namespace and name, of pods that changed lately
}

// latestMost bounds now and before. After a forgotten version the next one is decoded.
const latestMost = 4096

func newLatest() *latest {
	return &latest{seed: maphash.MakeSeed(), now: map[string]uint64{}, before: map[string]uint64{}}
}

// same returns the revision of a version that can be left out; ok is false for any other event, whose version it
// remembers. Malformed ones are left to the decoder.
func (l *latest) same(e frame) (revision int64, ok bool) {
	if l == nil {
		return 0, false
	}
	p, err := identify(e.object)
	if err != nil {
		return 0, false
	}
	id := string(p.namespace) + "/" + string(p.name)
	if e.typ == "DELETED" {
		delete(l.now, id)
		delete(l.before, id)
		return 0, false
	}
	l.room = trim(l.room[:0], e.object, comparedPod)
	hash := maphash.Bytes(l.seed, l.room)
	was, known := l.now[id]
	if !known {
		was, known = l.before[id]
	}
	if len(l.now) >= latestMost {
		l.now, l.before = map[string]uint64{}, l.now
	}
	l.now[id] = hash
	if e.typ != "MODIFIED" || !known || was != hash {
		return 0, false
	}
	revision, err = strconv.ParseInt(string(p.revision), 10, 64)
	return revision, err == nil
}

// forget makes the next version of each pod be decoded: the reader got versions that did not pass here.
func (l *latest) forget() {
	if l != nil {
		clear(l.now)
		clear(l.before)
	}
}

// comparedPod are the kept fields of a pod without its revision, which is another one in each version.
var comparedPod = func() parts {
	metadata := maps.Clone(keptMetadata)
	delete(metadata, 6)
	return parts{1: metadata, 2: keptPod[2], 3: keptPod[3]}
}()

// podIdentity has parts of the message of a pod.
type podIdentity struct{ namespace, name, revision []byte }

func identify(pod []byte) (p podIdentity, err error) {
	err = fields(pod, func(part protowire.Number, content []byte) error {
		if part != 1 {
			return nil
		}
		return fields(content, func(n protowire.Number, text []byte) error {
			switch n {
			case 1:
				p.name = text
			case 3:
				p.namespace = text
			case 6:
				p.revision = text
			}
			return nil
		})
	})
	return p, err
}
