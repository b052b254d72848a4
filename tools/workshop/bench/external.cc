#include "tools/workshop/bench/external.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/cluster/process.h"

namespace tensorcast::bench {
namespace {

constexpr absl::Duration kProgramTimeout = absl::Minutes(2);
constexpr absl::Duration kListenTimeout = absl::Seconds(20);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A port that was free a moment ago.
absl::StatusOr<int> FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus(errno, "find a free port on", "127.0.0.1");
  }
  return ntohs(address.sin_port);
}

// Whether a socket listens on the port, by the kernel's table: to connect would be to take the server's one
// client.
bool Listens(int port) {
  constexpr std::string_view kListenState = "0A";
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::string text = ReadFile(table);
    for (std::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::vector<std::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (fields.size() < 4 || fields[3] != kListenState) continue;
      const std::vector<std::string_view> local = absl::StrSplit(fields[1], ':');
      uint32_t listening = 0;
      if (local.size() == 2 && absl::SimpleHexAtoi(local[1], &listening) &&
          listening == static_cast<uint32_t>(port)) {
        return true;
      }
    }
  }
  return false;
}

absl::Status AwaitListening(const RequestContext& context, std::string_view name, const Process& server,
                            int port) {
  const SteadyTime deadline = SteadyNow() + kListenTimeout;
  while (!Listens(port)) {
    TC_RETURN_IF_ERROR(context.Check("bench"));
    if (!server.running() || SteadyNow() > deadline) {
      return absl::UnavailableError(absl::StrCat(name, " does not listen on port ", port,
                                                 "; its output ends:\n", FileTail(server.log_path(), 5)));
    }
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

// Waits for a program's end and returns what it wrote.
absl::StatusOr<std::string> OutputOf(const RequestContext& context, Process& process, std::string_view name) {
  const SteadyTime deadline = SteadyNow() + kProgramTimeout;
  absl::StatusOr<int> code = absl::DeadlineExceededError("not waited for yet");
  // In small steps, so that Ctrl-C ends it.
  while (absl::IsDeadlineExceeded(code.status())) {
    TC_RETURN_IF_ERROR(context.Check("bench"));
    if (SteadyNow() > deadline) return Annotate(code.status(), name);
    code = process.Wait(SteadyNow() + kPoll);
  }
  TC_RETURN_IF_ERROR(code.status());
  if (*code != 0) {
    return absl::InternalError(absl::StrCat(name, " ended with code ", *code, "; its output ends:\n",
                                            FileTail(process.log_path(), 10)));
  }
  return ReadFile(process.log_path());
}

}  // namespace

absl::StatusOr<std::string> FindProgram(std::string_view name, std::string_view debian_package) {
  const char* path = std::getenv("PATH");
  for (std::string_view folder :
       absl::StrSplit(path == nullptr ? "/usr/bin" : path, ':', absl::SkipEmpty())) {
    std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return absl::NotFoundError(
      absl::StrCat("no reference: ", name, " is not installed (Debian package ", debian_package, ")"));
}

absl::StatusOr<double> ParsePerftest(std::string_view output) {
  // iterations, percentile latency, average latency, overall latency, average bandwidth, overall bandwidth,
  // rates
  constexpr size_t kOverallBandwidth = 5;
  double rate = 0;
  bool found = false;
  for (std::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    const std::vector<std::string_view> fields = absl::StrSplit(line, ',');
    double value = 0;
    if (fields.size() > kOverallBandwidth && absl::SimpleAtod(fields[kOverallBandwidth], &value) &&
        value > 0) {
      rate = value;
      found = true;
    }
  }
  if (!found) {
    return absl::InternalError(absl::StrCat("no bandwidth in the output of ucx_perftest:\n", output));
  }
  return rate * 1048576 / 1e9;
}

absl::StatusOr<double> RunPerftest(const RequestContext& context, const PerftestOptions& options) {
  TC_ASSIGN_OR_RETURN(const std::string program, FindProgram("ucx_perftest", "ucx-utils"));
  TC_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create("tensorcast-perftest"));
  TC_ASSIGN_OR_RETURN(const int port, FreePort());
  ProcessOptions process;
  process.environment = {{"UCX_TLS", options.tls}, {"UCX_WARN_UNUSED_ENV_VARS", "n"}};
  if (options.tls == "tcp") process.environment.emplace_back("UCX_NET_DEVICES", "lo");
  process.argv = {program, "-p", absl::StrCat(port)};
  process.log_path = directory->path() + "/server";
  TC_ASSIGN_OR_RETURN(const auto server, Process::Start(process));
  TC_RETURN_IF_ERROR(AwaitListening(context, "ucx_perftest", *server, port));

  for (std::string argument :
       {std::string("127.0.0.1"), std::string("-t"), options.test, std::string("-s"),
        absl::StrCat(options.message_bytes), std::string("-n"), absl::StrCat(options.iterations),
        std::string("-w"), absl::StrCat(options.warmup), std::string("-f"), std::string("-v")}) {
    process.argv.push_back(std::move(argument));
  }
  process.argv.insert(process.argv.end(), options.arguments.begin(), options.arguments.end());
  process.log_path = directory->path() + "/client";
  TC_ASSIGN_OR_RETURN(const auto client, Process::Start(process));
  TC_ASSIGN_OR_RETURN(const std::string output, OutputOf(context, *client, "ucx_perftest"));
  return ParsePerftest(output);
}

absl::StatusOr<double> ParseIperf(std::string_view output) {
  const nlohmann::json json = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer rate("/end/sum_received/bits_per_second");
  if (!json.is_object() || !json.contains(rate) || !json[rate].is_number() || json[rate].get<double>() <= 0) {
    return absl::InternalError(absl::StrCat("no bandwidth in the output of iperf3: ", output.substr(0, 300)));
  }
  return json[rate].get<double>() / 8 / 1e9;
}

absl::StatusOr<double> RunIperf(const RequestContext& context) {
  TC_ASSIGN_OR_RETURN(const std::string program, FindProgram("iperf3", "iperf3"));
  TC_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create("tensorcast-iperf"));
  TC_ASSIGN_OR_RETURN(const int port, FreePort());
  ProcessOptions process;
  process.argv = {program, "--server", "--one-off", "--bind", "127.0.0.1", "--port", absl::StrCat(port)};
  process.log_path = directory->path() + "/server";
  TC_ASSIGN_OR_RETURN(const auto server, Process::Start(process));
  TC_RETURN_IF_ERROR(AwaitListening(context, "iperf3", *server, port));

  process.argv = {program, "--client", "127.0.0.1", "--port", absl::StrCat(port), "--time", "1", "--json"};
  process.log_path = directory->path() + "/client";
  TC_ASSIGN_OR_RETURN(const auto client, Process::Start(process));
  TC_ASSIGN_OR_RETURN(const std::string output, OutputOf(context, *client, "iperf3"));
  return ParseIperf(output);
}

std::vector<FioEngine> FioEngines() {
  return {{.name = "psync", .block = "4m"},
          {.name = "psync", .block = "16m"},
          {.name = "libaio", .block = "1m", .depth = 16},
          {.name = "libaio", .block = "4m", .depth = 8},
          {.name = "io_uring", .block = "1m", .depth = 16},
          {.name = "io_uring", .block = "4m", .depth = 8}};
}

std::string Describe(const FioEngine& engine) {
  return absl::StrCat("fio ", engine.name, " bs=", engine.block, " iodepth=", engine.depth, " O_DIRECT");
}

absl::StatusOr<double> ParseFio(std::string_view output) {
  // Warnings may stand before the object.
  const size_t begin = output.find('{');
  const nlohmann::json json =
      nlohmann::json::parse(begin == std::string_view::npos ? std::string_view() : output.substr(begin),
                            nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer rate("/jobs/0/read/bw_bytes"), error("/jobs/0/error");
  if (!json.is_object() || !json.contains(rate) || !json[rate].is_number() || json.value(error, 0) != 0 ||
      json[rate].get<double>() <= 0) {
    return absl::InternalError(
        absl::StrCat("no read bandwidth in the output of fio: ", output.substr(0, 300)));
  }
  return json[rate].get<double>() / 1e9;
}

absl::StatusOr<double> RunFio(const RequestContext& context, const FioEngine& engine, const std::string& file,
                              uint64_t bytes) {
  TC_ASSIGN_OR_RETURN(const std::string program, FindProgram("fio", "fio"));
  TC_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create("tensorcast-fio"));
  ProcessOptions process;
  process.argv = {program,
                  "--name=read",
                  "--rw=read",
                  "--direct=1",
                  "--readonly",
                  "--output-format=json",
                  "--filename=" + file,
                  "--ioengine=" + engine.name,
                  "--bs=" + engine.block,
                  absl::StrCat("--iodepth=", engine.depth),
                  absl::StrCat("--size=", bytes)};
  process.log_path = directory->path() + "/output";
  TC_ASSIGN_OR_RETURN(const auto fio, Process::Start(process));
  TC_ASSIGN_OR_RETURN(const std::string output, OutputOf(context, *fio, "fio"));
  return ParseFio(output);
}

}  // namespace tensorcast::bench
