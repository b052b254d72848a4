#include "tools/explain/explain.h"

#include <cstdio>

#include "client/admin.h"
#include "core/status/status.h"
#include "rpc/convert/convert.h"
#include "tools/cli/commands.h"
#include "tools/cli/json.h"
#include "tools/explain/analysis_json.h"
#include "tools/explain/find_transfer.h"

namespace tensorcast::cli {
namespace {

absl::Status Explain(const CommonFlags& common, const ExplainFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                      admin->GetStatus(InterruptibleContext(absl::Seconds(10))));
  TC_ASSIGN_OR_RETURN(const v1::TransferReport message, explain::FindTransfer(status, flags.transfer));
  TC_ASSIGN_OR_RETURN(const TransferReport report, rpc::FromProto(message));
  if (common.json) {
    std::printf("{\"transfer\": %s, \"analysis\": %s}\n", ToJson(message).c_str(),
                explain::AnalysisJson(report).c_str());
  } else {
    std::fputs(explain::ExplainTransfer(report).c_str(), stdout);
  }
  return absl::OkStatus();
}

}  // namespace

int RunExplain(const CommonFlags& common, const ExplainFlags& flags) {
  return ExitCode(Explain(common, flags));
}

}  // namespace tensorcast::cli
