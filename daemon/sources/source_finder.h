// Finds the sources of one materialisation: what the global store grants, several at once, then the files the
// artifact was imported from on this node, then again what failed or will be there soon.
//
// Each grant is completed exactly once, with how it ended, and the pull it opened is closed at the source;
// both happen in the background.
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
  // "local" or another lane between nodes: only other nodes, over that lane. "disk": only this node's packed
  // file and origins. Empty: the fastest first.
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

  // The sources of one materialisation; the provider is used by one thread at a time, as SourceProvider says.
  // All that are granted are opened side by side, and the first that answers is used first. One that has not
  // answered long after another did is overtaken: its grant ends as failed with DEADLINE_EXCEEDED, and its
  // peer rests (overtaken_peers.h). While no source answers, or those in use give nothing, the global store
  // is asked for others and the files of the import on this node are opened, too. While some sources are in
  // use the global store is asked for more and better ones a few times. What has all of it on this host is
  // wanted alone. While no source can give the bytes, but one may soon, Next waits and asks again, until the
  // context ends. A source that fails is asked again when nothing else is left, unless its bytes were wrong
  // or it failed too often in a row. Errors of Next, when there is nothing left: NOT_FOUND when the artifact
  // is not published or no node ever had it, DATA_LOSS when every source was corrupt, UNAVAILABLE otherwise;
  // the message lists what was tried, and what was waited for.
  std::shared_ptr<SourceProvider> Find(SourceRequest request) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
