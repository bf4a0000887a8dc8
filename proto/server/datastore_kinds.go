package server

import (
	"cmp"
	"slices"

	"github.com/manxnet/manx/datastore/userinfo"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// kinds returns how each kind stands to its source: the datastore, or the file of the last state in its place.
func (v *DatastoreView) kinds() (list []*manxv1.KindStatus) {
	now := v.now()
	last := now.last()
	if last != nil {
		for kind, objects := range last.Objects {
			list = append(list, &manxv1.KindStatus{Kind: string(kind), Source: last.File,
				SinceUnixMs: unixMs(last.Since), Reason: v.connection().Reason, Objects: uint32(objects),
				Revision: last.Revision, AnsweredUnixMs: unixMs(last.Valid)})
		}
	}
	if now.Tables != nil {
		for _, k := range now.Tables.Kinds() {
			if last != nil {
				if _, ofFile := last.Objects[k.Kind]; ofFile {
					continue
				}
			}
			s := &manxv1.KindStatus{Kind: string(k.Kind), InSync: k.InSync, SinceUnixMs: unixMs(k.Since),
				Objects: uint32(k.Objects), Quarantined: uint32(k.Quarantined), Revision: k.Revision,
				AnsweredUnixMs: unixMs(k.Answered)}
			if now.SourceOf != nil {
				s.Source = string(userinfo.Hide([]byte(now.SourceOf(k.Kind))))
			}
			switch {
			case k.InSync:
			case k.Lost != nil:
				s.Reason = printable(k.Lost.Error())
			default:
				s.Reason = beingRead
			}
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *manxv1.KindStatus) int { return cmp.Compare(a.GetKind(), b.GetKind()) })
	return list
}
