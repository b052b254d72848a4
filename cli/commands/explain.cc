#include "cli/explain/explain.h"

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/explain/analysis_json.h"
#include "cli/explain/find_transfer.h"
#include "cli/output/json.h"
#include "rpc/convert/convert.h"

namespace tensorcast::cli {
namespace {

struct ExplainFlags {
  std::string transfer = "last";  // "last", or the beginning of a transfer's or replica's id
};

constexpr absl::Duration kSourceTimeout = absl::Seconds(2);

// What the daemon of this name says of its side; a `problem` where it cannot be asked.
absl::Status Ask(const v1::GetClusterStatusResponse& cluster, const client::ClientCertificates& certificates,
                 explain::SourceWord* word) {
  for (const v1::Node& node : cluster.nodes()) {
    if (node.name() != word->source) continue;
    TC_ASSIGN_OR_RETURN(const auto source, client::AdminClient::Connect(node.grpc_address(), kSourceTimeout,
                                                                        OnTerminationSignal(), certificates));
    TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                        source->GetStatus(InterruptibleContext(kSourceTimeout)));
    explain::Hear(status, word);
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("the global store knows no node ", word->source, " now"));
}

// Never an error: what a source does not tell is said to be unknown.
std::vector<explain::SourceWord> AskSources(client::AdminClient& own,
                                            const client::ClientCertificates& certificates,
                                            const TransferReport& report) {
  std::vector<explain::SourceWord> words = explain::SourcesOf(report);
  absl::StatusOr<v1::GetClusterStatusResponse> cluster;
  for (explain::SourceWord& word : words) {
    if (word.lent) continue;
    if (!cluster.ok()) cluster = own.GetClusterStatus(InterruptibleContext(kSourceTimeout));
    const absl::Status asked = cluster.ok() ? Ask(*cluster, certificates, &word) : cluster.status();
    if (!asked.ok()) word.problem = std::string(asked.message());
  }
  return words;
}

absl::Status Explain(const CommonFlags& common, const ExplainFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                      admin->GetStatus(InterruptibleContext(absl::Seconds(10))));
  TC_ASSIGN_OR_RETURN(const explain::FoundTransfer found, explain::FindTransfer(status, flags.transfer));
  TC_ASSIGN_OR_RETURN(const TransferReport report, rpc::FromProto(found.report));
  TC_ASSIGN_OR_RETURN(const client::ClientCertificates certificates, ConfiguredCertificates(common));
  const explain::Beyond beyond{.under_way = found.under_way,
                               .sources = AskSources(*admin, certificates, report)};
  if (common.json) {
    std::printf("{\"transfer\": %s, \"under_way\": %s, \"analysis\": %s}\n", ToJson(found.report).c_str(),
                found.under_way ? "true" : "false", explain::AnalysisJson(report, beyond.sources).c_str());
  } else {
    std::fputs(explain::ExplainTransfer(report, beyond).c_str(), stdout);
  }
  return absl::OkStatus();
}

void AddFlags(Flags& flags, ExplainFlags& values) {
  flags.Add("transfer", values.transfer,
            "last, or the beginning of the id of a transfer or of the replica it made",
            {.show_default = true});
}

int RunExplain(const CommonFlags& common, const ExplainFlags& flags) {
  return ExitCode(Explain(common, flags));
}

}  // namespace

Command ExplainCommand() {
  return {.name = "explain",
          .help = "Show where the time of a transfer to this daemon went",
          .bind = Bind(AddFlags, RunExplain)};
}

}  // namespace tensorcast::cli
