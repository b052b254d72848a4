#include "cli/explain/source_word.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"

namespace tensorcast::explain {
namespace {

absl::Duration ServedFor(const v1::ServeReport& served) {
  return rpc::FromProto(served.last_completion()) - rpc::FromProto(served.first_request());
}

std::string ServedText(const SourceWord& word) {
  const v1::ServeReport& served = *word.served;
  if (served.requests() == 0) return "was never asked for a byte";
  std::string text =
      absl::StrCat("served ", cli::FormatBytes(served.bytes()), " in ", served.requests(), " requests, ",
                   cli::FormatSeconds(ServedFor(served)), " s from the first of them to its last byte");
  if (served.in_place()) return absl::StrCat(text, ", from host memory as it lay");
  return absl::StrCat(
      text, ", reading a GPU or a disk first: ", cli::FormatSeconds(rpc::FromProto(served.reading())), " s",
      absl::StrFormat(" (%.0f %%)", ReadingShare(word) * 100));
}

std::string Text(const SourceWord& word) {
  if (word.lent) return "lent its memory; the copying was done here";
  return word.served.has_value() ? ServedText(word) : absl::StrCat("not known: ", word.problem);
}

}  // namespace

std::vector<SourceWord> SourcesOf(const TransferReport& report) {
  std::vector<SourceWord> words;
  for (const StageReport& stage : report.stages) {
    const SourceInfo& source = stage.source;
    const auto same = [&](const SourceWord& word) { return word.grant_id == source.grant_id; };
    if (source.grant_id.empty() || std::ranges::any_of(words, same)) continue;
    words.push_back({.source = source.name,
                     .lane = source.lane,
                     .grant_id = source.grant_id,
                     .lent = source.lane == kLocalLane});
  }
  return words;
}

void Hear(const v1::ExplainTransferResponse& response, std::vector<SourceWord>* words) {
  for (SourceWord& word : *words) {
    if (word.lent) continue;
    word.problem = absl::StrCat("daemon ", word.source, " was not asked");
    for (const v1::TransferHop& hop : response.hops()) {
      // The first hop is the receiver's.
      if (hop.node() != word.source || &hop == &response.hops(0)) continue;
      const auto served = std::ranges::find_if(hop.servings(), [&word](const v1::ServeReport& one) {
        return one.grant_id() == word.grant_id && one.lane() == word.lane;
      });
      if (served != hop.servings().end()) {
        // One that went over to another lane was opened twice; the newest comes first.
        word.served = *served;
        word.problem.clear();
        break;
      }
      word.problem = hop.problem().empty() ? absl::StrCat("daemon ", word.source,
                                                          " no longer remembers transport ", word.grant_id)
                                           : hop.problem();
    }
  }
}

double ReadingShare(const SourceWord& word) {
  if (!word.served.has_value() || word.served->in_place()) return 0;
  const absl::Duration served_for = ServedFor(*word.served);
  if (served_for <= absl::ZeroDuration()) return 0;
  return absl::FDivDuration(rpc::FromProto(word.served->reading()), served_for);
}

std::string SourcesText(const std::vector<SourceWord>& words) {
  std::string text;
  for (const SourceWord& word : words) {
    absl::StrAppend(&text, "source ", word.source, " (", word.lane, "): ", Text(word), "\n");
  }
  return text;
}

}  // namespace tensorcast::explain
