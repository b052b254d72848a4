// The failures of one transfer's sources, and the error of the request when no source is left. Sources that
// could not be opened are also kept for the transfer's report, since the engine never had them.
//
// Thread-compatible.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/source/chunk_source.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class SourceFailures {
 public:
  // Keeps the last failure of each source, and whether its bytes were ever wrong.
  void Note(const SourceFailure& failure);
  // Like Note, for a source that could not be opened. Also keeps the failure for the report.
  void NoteUnopened(SourceFailure failure);
  // Keeps lanes that failed before another lane opened the same source. They are only for the report.
  void NoteUnopenedLanes(std::vector<SourceFailure> lanes);
  // The sources and lanes that could not be opened, since the last call.
  std::vector<SourceFailure> TakeUnopened() { return std::exchange(unopened_, {}); }
  // Keeps the last answer of the global store.
  void NoteAnswer(const v1::RequestReplicaTransportResponse& answer);
  // Records that the transfer now waits for the sources that the last answer named, and describes them for
  // people.
  std::string NoteWait();

  // NOT_FOUND if nothing failed and no answer named a node to wait for. Otherwise the first that applies:
  // UNAVAILABLE if a retry may succeed, DATA_LOSS for wrong bytes, NOT_FOUND for files that are gone. `lane`:
  // the forced lane; empty: no lane was forced.
  absl::Status NothingLeft(const std::string& artifact_id, const std::string& lane) const;

 private:
  std::vector<SourceFailure> failures_;  // in the order of the sources' first failures
  std::vector<SourceFailure> unopened_;  // since TakeUnopened
  std::string no_source_reason_;
  std::vector<std::string> waited_for_;
  std::vector<std::string> waited_in_vain_;
};

}  // namespace tensorcast::daemon
