// The reports of the daemons that a transfer read from. They show whether a source or the network made a
// fetch slow. Pure functions; cli/commands/explain.cc asks the daemons.
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
  bool mapped = false;  // the receiver read the source's memory directly; the source has no report
  std::optional<v1::ServeReport> served;
  std::string problem;  // why there is no report
};

// One entry for each grant under which the transfer fetched. `served` is not set: hops.h adds the reports.
std::vector<SourceDetails> SourcesOf(const TransferReport& report);

// The source's time for reading a GPU or a disk, divided by its time from the first request to the last byte.
// 0 if the source sent from host memory, or has no report. Above 1 if reads overlapped.
double ReadingShare(const SourceDetails& detail);

// One line for each source.
std::string SourcesText(const std::vector<SourceDetails>& details);

}  // namespace tensorcast::explain
