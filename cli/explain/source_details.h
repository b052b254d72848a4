// What the daemons that a transfer read from say of it. The receiver's report has only its own side: whether
// a slow fetch was the source's or the network's doing, the source knows. Pure functions;
// cli/commands/explain.cc asks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"

namespace tensorcast::explain {

struct SourceDetails {
  std::string source;  // the daemon's name
  std::string lane;
  std::string grant_id;
  bool mapped = false;  // its memory was attached to: it had nothing to do, and has nothing to tell
  std::optional<v1::ServeReport> served;
  std::string problem;  // why it says nothing
};

// One for each grant that the transfer fetched under, with nothing said yet (hops.h adds what they say).
std::vector<SourceDetails> SourcesOf(const TransferReport& report);

// How much of the time from its first request to its last byte the source spent on reading a GPU or a disk. 0
// when it sent from host memory, or said nothing; more than 1 when reads overlapped.
double ReadingShare(const SourceDetails& detail);

// A line for each.
std::string SourcesText(const std::vector<SourceDetails>& details);

}  // namespace tensorcast::explain
