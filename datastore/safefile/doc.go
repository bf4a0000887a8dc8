// Package safefile creates, replaces, appends to and removes files, locks and unix sockets in folders where other users
// may create links, pipes and files under the same names.
//
// A path is traversed folder by folder, each opened relative to the one before (openat), and nothing is opened by its
// whole path afterwards. A symbolic link is followed only if root or this process's user owns it and no other user
// could have put it there. A new file gets a random name and O_EXCL|O_NOFOLLOW and is then renamed into place.
package safefile
