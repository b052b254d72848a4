// Finds the sources of one materialization. First come the grants of the global store, several at once; then
// the files of this node that the artifact was imported from. After these the finder tries failed sources
// again, and waits for sources that come soon.
//
// Each grant ends exactly once, with its outcome, and its pull is closed at the source; both happen in the
// background.
#pragma once

#include <memory>
#include <string>

#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/replica/replica.h"
#include "core/source/chunk_source.h"
#include "core/source/object_reader.h"
#include "daemon/sources/held_grants.h"

namespace tensorcast::daemon {

struct SourceRequest {
  std::shared_ptr<const Manifest> manifest;
  Location destination;
  // "local" or another lane between nodes: use only other nodes, over that lane. "disk": use only this node's
  // packed file and origins. Empty: use all, the fastest first.
  std::string lane;
};

class SourceFinder {
 public:
  struct Options {
    HeldGrants::Parts grants;
    const DeviceRuntime* devices = nullptr;      // may be null; must outlive the providers
    std::shared_ptr<const ObjectStore> objects;  // of imports
  };

  explicit SourceFinder(const Options& options) : options_(options) {}

  // The sources of one materialization. Only one thread at a time may use the provider (see SourceProvider).
  //
  // - All granted sources are opened in parallel, and the first that answers is used first. But if the best
  //   of them is a whole replica on this host, it is first opened alone. A source is overtaken if it has no
  //   answer long after another source answered: its grant ends with DEADLINE_EXCEEDED, and its peer rests
  //   (overtaken_peers.h).
  // - While no source answers, or the sources in use deliver nothing, the finder asks the global store for
  //   others, and also opens the files of the import on this node. While sources are in use, it asks the
  //   store a few times for more and better ones. A whole replica on this host is used without any other
  //   source.
  // - While no source can deliver bytes but one may soon, Next waits and asks again until the context ends.
  //   When nothing else is left, failed sources are tried again, except those with wrong bytes or with too
  //   many failures in a row.
  //
  // Errors of Next, when nothing is left: NOT_FOUND when the artifact is not published or no node ever had
  // it, DATA_LOSS when every source was corrupt, UNAVAILABLE otherwise. The message lists what was tried and
  // waited for.
  std::shared_ptr<SourceProvider> Find(SourceRequest request) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
