#include "cli/explain/explain.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/parallel.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/explain/find_transfer.h"
#include "cli/explain/rollout.h"
#include "cli/output/output.h"
#include "core/artifact/manifest.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::cli {
namespace {

struct ExplainFlags {
  std::string transfer = "last";                // "last", or the beginning of a transfer's or replica's id
  std::string rollout;                          // a key or an artifact id; empty: one transfer is explained
  absl::Duration since = absl::ZeroDuration();  // of a rollout; zero: all that is remembered
};

// The daemon bounds what it asks others, and for how long.
constexpr absl::Duration kTimeout = absl::Seconds(10);
// Of a receiver of a rollout: those that do not answer cost so much together.
constexpr absl::Duration kReceiverTimeout = absl::Seconds(5);
constexpr size_t kSlowest = 10;

// An id says more than a key that happens to begin so.
absl::StatusOr<explain::FoundTransfer> Find(client::AdminClient& admin, const v1::GetStatusResponse& status,
                                            const std::string& wanted) {
  absl::StatusOr<explain::FoundTransfer> by_id = explain::FindTransfer(status, wanted);
  if (!absl::IsNotFound(by_id.status())) return by_id;
  const absl::StatusOr<v1::ResolveKeyResponse> key = admin.ResolveKey(InterruptibleContext(kTimeout), wanted);
  return key.ok() ? explain::FindTransfer(status, key->key().artifact_id()) : by_id;
}

// What the receiver's daemon says, under the caller's own name.
explain::SlowCause AskReceiver(const v1::RolloutHop& hop, client::ClientOptions options) {
  explain::SlowCause unknown;
  if (hop.grpc_address().empty()) {
    unknown.problem = "the node is gone";
  } else if (hop.transfer_id().empty()) {
    unknown.problem = hop.has_ended()
                          ? "the node's daemon did not report which transfer brought the artifact"
                          : "the transfer is under way; `tensorcast explain` on that node shows more";
  }
  if (!unknown.problem.empty()) return unknown;
  options.daemon = hop.grpc_address();
  options.connect_timeout = kReceiverTimeout;
  const auto daemon = client::AdminClient::Connect(options);
  absl::StatusOr<v1::ExplainTransferResponse> explained =
      daemon.ok() ? (*daemon)->ExplainTransfer(InterruptibleContext(kReceiverTimeout), hop.transfer_id())
                  : daemon.status();
  if (explained.ok()) return explain::CauseOf(*explained);
  unknown.problem =
      absl::StrCat("the node's daemon did not explain the transfer: ", explained.status().message());
  return unknown;
}

absl::Status ExplainRollout(const CommonFlags& common, const ExplainFlags& flags) {
  TC_ASSIGN_OR_RETURN(const client::ClientOptions options, ConfiguredClient(common));
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  v1::ExplainRolloutRequest request;
  if (IsArtifactId(flags.rollout)) {
    request.set_artifact_id(flags.rollout);
  } else {
    request.set_key(flags.rollout);
  }
  if (flags.since > absl::ZeroDuration()) *request.mutable_since() = rpc::ToProto(absl::Now() - flags.since);
  request.set_slowest(kSlowest);
  TC_ASSIGN_OR_RETURN(const v1::ExplainRolloutResponse rollout,
                      admin->ExplainRollout(InterruptibleContext(kTimeout), request));
  std::vector<explain::SlowCause> causes(static_cast<size_t>(rollout.slowest_size()));
  ForEachInParallel(causes.size(), kSlowest, [&](size_t i) {
    if (OnTerminationSignal().IsCancelled()) return;
    causes[i] = AskReceiver(rollout.slowest(static_cast<int>(i)), options);
  });
  if (common.json) {
    std::printf("%s", explain::RolloutJson(rollout, causes).c_str());
  } else {
    Print(explain::ExplainRollout(flags.rollout, rollout, causes));
  }
  return absl::OkStatus();
}

absl::Status Explain(const CommonFlags& common, const ExplainFlags& flags) {
  if (!flags.rollout.empty() && flags.transfer != ExplainFlags().transfer) {
    return absl::InvalidArgumentError(
        "explain: both a transfer and a rollout were named; name one, `explain KEY` or `explain --rollout "
        "KEY`");
  }
  if (!flags.rollout.empty()) return ExplainRollout(common, flags);
  if (flags.since > absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "explain: --since only applies to a rollout; name a rollout with --rollout KEY, or leave --since "
        "out");
  }
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, admin->GetStatus(InterruptibleContext(kTimeout)));
  TC_ASSIGN_OR_RETURN(explain::FoundTransfer found, Find(*admin, status, flags.transfer));
  const absl::StatusOr<v1::ExplainTransferResponse> explained =
      admin->ExplainTransfer(InterruptibleContext(kTimeout), found.report.transfer_id());
  if (!explained.ok() && OnTerminationSignal().IsCancelled()) return explained.status();
  if (explained.ok() && explained->hops_size() > 0) {
    // As it is now: it may have ended meanwhile.
    found = {.report = explained->hops(0).transfer(), .under_way = explained->hops(0).under_way()};
  }
  TC_ASSIGN_OR_RETURN(const TransferReport report, rpc::FromProto(found.report));
  explain::Beyond beyond{.under_way = found.under_way};
  if (explained.ok()) beyond.route = explain::RouteOf(*explained);
  beyond.sources = explain::DetailsOf(beyond.route, report);
  if (!explained.ok()) {
    // No error of this command: what the others do not tell is said to be unknown.
    for (explain::SourceDetails& detail : beyond.sources) {
      detail.problem = std::string(explained.status().message());
    }
  }
  if (common.json) {
    std::printf("{\"transfer\": %s, \"under_way\": %s, \"analysis\": %s}\n", ToJson(found.report).c_str(),
                found.under_way ? "true" : "false",
                explain::AnalysisJson(report, beyond.sources, beyond.route).c_str());
  } else {
    Print(explain::ExplainTransfer(report, beyond));
  }
  return absl::OkStatus();
}

void AddFlags(Flags& flags, ExplainFlags& values) {
  flags.Add("transfer", values.transfer,
            "The word last (the newest transfer), the first characters of a transfer's id or of its "
            "replica's id, a key, or an artifact id",
            {.show_default = true});
  flags.Add("--rollout", values.rollout,
            "Instead of a transfer, show how the artifact with this key or id reached all nodes: the tree, "
            "the slowest receivers with the causes, and the hop with the largest delay",
            {.not_empty = true});
  flags.Add("--since", values.since,
            "With --rollout: only transfers that began within this time, such as 10m", {.min = 0});
}

}  // namespace

Command ExplainCommand() {
  return {.name = "explain",
          .help = "Show where time went in a transfer to this daemon, or in a rollout to all nodes",
          .spanned = true,
          .bind = Bind(AddFlags, Explain)};
}

}  // namespace tensorcast::cli
