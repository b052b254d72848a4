#include "cli/explain/source_details.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"

namespace tensorcast::explain {
namespace {

// The clocks of other nodes may differ from this one's, so only differences of one node's times are used.
absl::Duration ServedFor(const v1::ServeReport& served) {
  return rpc::FromProto(served.last_completion()) - rpc::FromProto(served.first_request());
}

std::string ServedText(const SourceDetails& detail) {
  const v1::ServeReport& served = *detail.served;
  if (served.requests() == 0) return "never received a request";
  std::string text =
      absl::StrCat("served ", cli::FormatBytes(served.bytes()), " in ", served.requests(), " requests, ",
                   cli::FormatSeconds(ServedFor(served)), " s from the first request to the last byte");
  if (served.in_place()) return absl::StrCat(text, ", directly from host memory");
  return absl::StrCat(text, "; reading its GPU or disk took ",
                      cli::FormatSeconds(rpc::FromProto(served.reading())), " s",
                      absl::StrFormat(" (%.0f %%)", ReadingShare(detail) * 100));
}

std::string Text(const SourceDetails& detail) {
  if (detail.mapped) return "lent its memory; this node copied the bytes";
  return detail.served.has_value() ? ServedText(detail) : absl::StrCat("not known: ", detail.problem);
}

}  // namespace

std::vector<SourceDetails> SourcesOf(const TransferReport& report) {
  std::vector<SourceDetails> details;
  for (const StageReport& stage : report.stages) {
    const SourceInfo& source = stage.source;
    const auto same = [&](const SourceDetails& detail) { return detail.grant_id == source.grant_id; };
    if (source.grant_id.empty() || std::ranges::any_of(details, same)) continue;
    details.push_back({.source = source.name,
                       .lane = source.lane,
                       .grant_id = source.grant_id,
                       .mapped = source.lane == kLocalLane});
  }
  return details;
}

double ReadingShare(const SourceDetails& detail) {
  if (!detail.served.has_value() || detail.served->in_place()) return 0;
  const absl::Duration served_for = ServedFor(*detail.served);
  if (served_for <= absl::ZeroDuration()) return 0;
  return absl::FDivDuration(rpc::FromProto(detail.served->reading()), served_for);
}

std::string SourcesText(const std::vector<SourceDetails>& details) {
  std::string text;
  for (const SourceDetails& detail : details) {
    absl::StrAppend(&text, "source ", detail.source, " (", detail.lane, "): ", Text(detail), "\n");
  }
  return text;
}

}  // namespace tensorcast::explain
