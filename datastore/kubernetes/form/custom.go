package form

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/model"
)

var errUnfinished = errors.New("unfinished")

// Encode gives the JSON of the custom resource of o, for create and update: with o.Revision as resourceVersion unless it
// is 0, and with all fields of the stored object that this version does not know.
func Encode(g Group, o *model.Object) ([]byte, error) { return nil, errUnfinished }

// Decode reads a custom resource as an object of kind k. The object has Err set if it is bad. The error is for what has not
// even a key: raw is no JSON of an object, or its metadata lacks a name or a usable resourceVersion.
func Decode(g Group, k model.Kind, raw []byte) (*model.Object, error) { return nil, errUnfinished }

// UID is the UID of the custom resource of an object with the given one, and the other way round.
func UID(g Group, uid types.UID) types.UID { return uid }
