#include "cli/explain/explain.h"

#include <cstdio>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/explain/find_transfer.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"

namespace tensorcast::cli {
namespace {

struct ExplainFlags {
  std::string transfer = "last";  // "last", or the beginning of a transfer's or replica's id
};

// The daemon bounds what it asks others, and for how long.
constexpr absl::Duration kTimeout = absl::Seconds(10);

// An id says more than a key that happens to begin so.
absl::StatusOr<explain::FoundTransfer> Find(client::AdminClient& admin, const v1::GetStatusResponse& status,
                                            const std::string& wanted) {
  absl::StatusOr<explain::FoundTransfer> by_id = explain::FindTransfer(status, wanted);
  if (!absl::IsNotFound(by_id.status())) return by_id;
  const absl::StatusOr<v1::ResolveKeyResponse> key = admin.ResolveKey(InterruptibleContext(kTimeout), wanted);
  return key.ok() ? explain::FindTransfer(status, key->key().artifact_id()) : by_id;
}

absl::Status Explain(const CommonFlags& common, const ExplainFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, admin->GetStatus(InterruptibleContext(kTimeout)));
  TC_ASSIGN_OR_RETURN(explain::FoundTransfer found, Find(*admin, status, flags.transfer));
  const absl::StatusOr<v1::ExplainTransferResponse> explained =
      admin->ExplainTransfer(InterruptibleContext(kTimeout), found.report.transfer_id());
  if (OnTerminationSignal().IsCancelled()) return explained.status();
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
            "last, the first characters of a transfer's id or of its replica's id, a key, or an artifact id",
            {.show_default = true});
}

}  // namespace

Command ExplainCommand() {
  return {.name = "explain",
          .help = "Show where the time of a transfer to this daemon went",
          .spanned = true,
          .bind = Bind(AddFlags, Explain)};
}

}  // namespace tensorcast::cli
