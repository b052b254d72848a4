#include "cli/explain/analysis.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/steady_time.h"
#include "cli/output/output.h"

namespace tensorcast::explain {
namespace {

using cli::FormatRate;
using cli::FormatSeconds;

// A stage this close to the first, in busy time, is named beside it.
constexpr double kClose = 0.8;

int Percent(absl::Duration part, absl::Duration whole) {
  if (whole <= absl::ZeroDuration()) return 0;
  return static_cast<int>(absl::FDivDuration(part, whole) * 100 + 0.5);
}

// The stages' intervals, cut to the transfer's own, in order of their start.
std::vector<std::pair<SteadyTime, SteadyTime>> Intervals(const TransferReport& report, SteadyTime begin,
                                                         SteadyTime end) {
  std::vector<std::pair<SteadyTime, SteadyTime>> intervals;
  for (const StageReport& stage : report.stages) {
    const SteadyTime from = std::clamp(stage.start, begin, end);
    intervals.emplace_back(from, std::clamp(stage.end, from, end));
  }
  std::ranges::sort(intervals);
  return intervals;
}

// From the first chunk that was asked for to the last that came; zero where it is not known when chunks were
// under way.
absl::Duration FetchWindow(const TransferReport& report) {
  if (report.fetching <= absl::ZeroDuration()) return absl::ZeroDuration();
  SteadyTime first = SteadyTime::InfiniteFuture();
  SteadyTime last = SteadyTime::InfinitePast();
  for (const StageReport& stage : report.stages) {
    if (stage.stage != Stage::kFetch) continue;
    first = std::min(first, stage.start);
    last = std::max(last, stage.end);
  }
  return last > first ? last - first : absl::ZeroDuration();
}

// Of this stage, the source that kept it busy for longest.
const StageReport* Heaviest(const TransferReport& report, Stage stage) {
  const StageReport* heaviest = nullptr;
  for (const StageReport& candidate : report.stages) {
    if (candidate.stage != stage) continue;
    if (heaviest == nullptr || candidate.busy > heaviest->busy) heaviest = &candidate;
  }
  return heaviest;
}

// The source spent so much of the time that it served on reading that this was the limit.
constexpr double kMostlyReading = 0.7;

std::string_view RemoteHint(const SourceDetails* detail) {
  if (detail == nullptr || !detail->served.has_value()) {
    return "The source or the network is the limit: a faster lane, or a source with less to do, would "
           "help.";
  }
  if (ReadingShare(*detail) >= kMostlyReading) {
    return "The source is the limit: it was reading its GPU or disk for most of the time. A source "
           "that has the artifact in host memory would help.";
  }
  return "The source had the bytes ready: the network is the limit, or the cores that drive it on either "
         "side. A faster lane would help.";
}

std::string_view FetchHint(const SourceInfo& source, const SourceDetails* detail) {
  if (source.type == SourceType::kRemote && source.lane != kLocalLane) return RemoteHint(detail);
  if (source.type == SourceType::kDisk && source.lane != kDiskLane) {
    return "The object store is the limit, or the network to it: a peer that has the artifact would help.";
  }
  if (source.type == SourceType::kDisk) {
    return "Reading the files is the limit: a faster disk, or a peer that has the artifact in memory, "
           "would help.";
  }
  return "Copying within the host is the limit (digests are computed during the copy): more memory bandwidth "
         "or cores would help.";
}

std::string_view Hint(Stage stage, const SourceInfo& source, const Location& destination,
                      const SourceDetails* detail) {
  if (stage == Stage::kFetch) return FetchHint(source, detail);
  if (stage == Stage::kVerify) return "Computing digests is the limit: more cores would help.";
  if (destination.kind == LocationKind::kGpu) {
    return "Copies to the GPU are the limit: a faster link to the GPU, or more daemon.staging_buffers, would "
           "help.";
  }
  return destination.kind == LocationKind::kDisk
             ? "Writing the file is the limit: a faster disk would help."
             : "Copying in host memory is the limit: more memory bandwidth or cores would help.";
}

const SourceDetails* DetailsOf(const SourceInfo& source, const std::vector<SourceDetails>& details) {
  const auto found = std::ranges::find(details, source.grant_id, &SourceDetails::grant_id);
  return found == details.end() ? nullptr : &*found;
}

// A chunk passes the stages in turn on one thread, so all slots together spend their time on the stages in
// the proportion of `busy`: the largest share is where a faster part would gain most.
Bound StageBound(const TransferReport& report, const std::vector<SourceDetails>& details) {
  std::vector<StageTotal> totals = TotalsOf(report);
  std::ranges::stable_sort(totals, std::greater(), &StageTotal::busy);
  const StageTotal& first = totals.front();
  const StageReport& heaviest = *Heaviest(report, first.stage);
  Bound bound{.part = std::string(StageName(first.stage))};
  bound.why = absl::StrFormat("%s took %.0f %% of the busy time, with %.1f chunks in this stage at once",
                              bound.part, first.share * 100, AtOnce(heaviest));
  if (heaviest.bytes > 0) {
    absl::StrAppend(&bound.why, " at ", FormatRate(heaviest.bytes, heaviest.busy), " each");
  }
  absl::StrAppend(&bound.why, " (", heaviest.source.lane, ", ", heaviest.source.name, ").");
  if (totals.size() > 1 && totals[1].share > first.share * kClose) {
    absl::StrAppend(&bound.why, absl::StrFormat(" %s is close behind with %.0f %%.",
                                                StageName(totals[1].stage), totals[1].share * 100));
  }
  const TransferParts parts = PartsOf(report);
  bound.share = first.share * absl::FDivDuration(parts.moving, parts.total());
  bound.cause = FindCause(report, parts.total(), parts.moving, first.stage, details);
  if (!bound.cause.name.empty()) bound.share = bound.cause.share;
  absl::StrAppend(&bound.why, " ",
                  !bound.cause.why.empty() ? bound.cause.why
                                           : Hint(first.stage, heaviest.source, report.destination,
                                                  DetailsOf(heaviest.source, details)));
  return bound;
}

std::string Took(absl::Duration part, const TransferParts& parts) {
  return absl::StrCat(FormatSeconds(part), " s of ", FormatSeconds(parts.total()), " s (",
                      Percent(part, parts.total()), " %) ");
}

}  // namespace

// A sweep over the stages' intervals in order of their start. `reached` is how far the time is accounted for:
// up to the first interval it is start, what no interval covers after that is a gap, and what intervals cover
// is moving, each moment once however many overlap there. So the parts add up to the whole.
TransferParts PartsOf(const TransferReport& report) {
  TransferParts parts{.begin = report.queued, .end = std::max(report.end, report.queued)};
  // One that was given up in the queue never started.
  const SteadyTime start = report.start < report.queued ? parts.end : std::min(report.start, parts.end);
  parts.queue = start - parts.begin;
  SteadyTime reached = start;
  bool first = true;
  for (const auto& [from, to] : Intervals(report, start, parts.end)) {
    if (from > reached || first) (first ? parts.start : parts.gaps) += std::max(from, reached) - reached;
    parts.moving += std::max(to, reached) - std::max(from, reached);
    reached = std::max(reached, to);
    first = false;
  }
  parts.finish = parts.end - reached;
  // A report without an account of its own does not say when chunks were verified and placed: that time is
  // taken to be all beside the fetching, so that a busy node does not look starved.
  absl::Duration starved = report.wall_time[TimeUse::kIdle] - parts.gaps;
  if (report.wall_time.whole <= absl::ZeroDuration()) {
    starved = FetchWindow(report) - report.fetching - parts.gaps;
    for (const StageReport& stage : report.stages) {
      if (stage.stage != Stage::kFetch) starved -= stage.busy;
    }
  }
  parts.starved = std::clamp(starved, absl::ZeroDuration(), parts.moving);
  parts.moving -= parts.starved;
  return parts;
}

std::vector<StageTotal> TotalsOf(const TransferReport& report) {
  std::vector<StageTotal> totals;
  absl::Duration busy;
  for (const Stage stage : {Stage::kFetch, Stage::kVerify, Stage::kPlace}) {
    StageTotal total{.stage = stage};
    // A stage that nothing went through is left out, not told as 0 %.
    bool seen = false;
    for (const StageReport& one : report.stages) {
      if (one.stage != stage) continue;
      seen = true;
      total.bytes += one.bytes;
      total.busy += one.busy;
    }
    busy += total.busy;
    if (seen) totals.push_back(total);
  }
  for (StageTotal& total : totals) {
    total.share = busy > absl::ZeroDuration() ? absl::FDivDuration(total.busy, busy) : 0;
  }
  return totals;
}

double AtOnce(const StageReport& stage) {
  const absl::Duration wall = stage.end - stage.start;
  return wall > absl::ZeroDuration() ? absl::FDivDuration(stage.busy, wall) : 0;
}

Bound FindBound(const TransferReport& report, const std::vector<SourceDetails>& details) {
  const TransferParts parts = PartsOf(report);
  if (parts.total() <= absl::ZeroDuration()) {
    Bound nothing{.part = "nothing"};
    nothing.why = "The transfer took no measurable time.";
    return nothing;
  }
  struct Held {
    std::string_view part;
    absl::Duration took;
    std::string_view why;
  };
  // The order decides between equal times: max_element takes the first, and so the cause that lies further
  // outside the transfer.
  const Held held[] = {
      {"queue", parts.queue,
       "before the transfer's turn came: other transfers were running (daemon.max_concurrent_ingests)."},
      {"starved", parts.starved,
       "with nothing to ask for: no source had a chunk that was still missing. The nodes that filled these "
       "sources are the limit."},
      {"gaps", parts.gaps, "between sources: one source was given up and another source had to be found."},
      {"finish", parts.finish,
       "after the last chunk: the source was released and the replica was committed."},
      {"start", parts.start,
       "before the first byte: the transfer waited for space, or for a source to be found and opened."}};
  const Held& longest = *std::ranges::max_element(held, {}, &Held::took);
  const Cause of_start = CauseOfStart(report, parts.total(), parts.start);
  // Only where the bytes moved for the longest part is a stage the bound; else what held them up is.
  if (parts.moving >= longest.took && !report.stages.empty()) {
    Bound bound = StageBound(report, details);
    if (bound.share >= of_start.share) return bound;
  } else if (longest.part != "start" || of_start.name.empty()) {
    Bound bound{.part = std::string(longest.part), .share = absl::FDivDuration(longest.took, parts.total())};
    bound.why = absl::StrCat(Took(longest.took, parts), "went by ", longest.why);
    return bound;
  }
  return {.part = "start",
          .share = of_start.share,
          .cause = of_start,
          .why = absl::StrCat(Took(parts.start, parts), "went by before the first byte. ", of_start.why)};
}

Bound FindVerdict(const TransferReport& report, const std::vector<SourceDetails>& details) {
  if (report.status.ok()) return FindBound(report, details);
  const TransferParts parts = PartsOf(report);
  Bound failed{.part = "failed"};
  if (report.start < report.queued) {
    failed.why = "before the transfer's turn came";
  } else if (report.bytes == 0) {
    const auto opened = [](const SourceReport& source) { return source.loss != SourceLoss::kNotOpened; };
    failed.why = std::ranges::any_of(report.sources, opened) || !report.stages.empty()
                     ? "before the first chunk was in place"
                     : "before any source answered";
  } else {
    failed.why = absl::StrCat("with ", cli::FormatBytes(report.bytes), " of ",
                              cli::FormatBytes(report.bytes_total), " in place");
  }
  absl::StrAppend(&failed.why, ", after ", FormatSeconds(parts.total()), " s: ", report.status.ToString());
  return failed;
}

}  // namespace tensorcast::explain
