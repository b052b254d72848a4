// `tensorcast dashboard`: the cluster in a browser, served beside any daemon or global store.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/address.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/dashboard/dashboard.h"
#include "cli/dashboard/documents.h"
#include "cli/dashboard/token_socket.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

struct DashboardFlags {
  std::string token;  // "token": print an address of the dashboard that runs
  std::string listen = "127.0.0.1:7465";
  bool open = false;
  dashboard::TlsFiles tls;
};

absl::Status CheckFlags(const DashboardFlags& flags) {
  const dashboard::TlsFiles& tls = flags.tls;
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("start the dashboard: TLS needs two files; give both --cert and --key");
  }
  if (!tls.client_ca.empty() && tls.certificate.empty()) {
    return absl::InvalidArgumentError(
        "start the dashboard: --client-ca needs TLS; give --cert and --key as well");
  }
  return absl::OkStatus();
}

absl::StatusOr<HostPort> ListenAddress(const DashboardFlags& flags) {
  absl::StatusOr<HostPort> address = ParseHostPort(flags.listen);
  if (!address.ok()) return Annotate(address.status(), "--listen");
  return address;
}

// Shows the address in the user's browser. Without one the user opens what is printed.
void Open(const std::string& address) {
  // Twice: init, and not this process, then waits for the browser.
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      execlp("xdg-open", "xdg-open", address.c_str(), nullptr);
      _exit(127);
    }
    _exit(0);
  }
  if (child > 0) waitpid(child, nullptr, 0);
}

absl::Status ServeUntilInterrupted(const CommonFlags& common, const DashboardFlags& flags) {
  TC_RETURN_IF_ERROR(CheckFlags(flags));
  dashboard::Dashboard::Options options;
  TC_ASSIGN_OR_RETURN(options.server.listen, ListenAddress(flags));
  options.server.tls = flags.tls;
  options.page = dashboard::EmbeddedPage();
  // A configuration that cannot be read is an error now; a daemon that is not there is one that the pages
  // show.
  TC_RETURN_IF_ERROR(LoadConfig(common).status());
  dashboard::Documents::Options source;
  // Called for each new connection, on any thread. The configuration was loaded above, once, and later calls
  // only read it. The daemon's socket is looked for and the certificate files are read each time, so that
  // neither needs a restart when it changes.
  source.connect = [&common] { return ConfiguredClient(common); };
  source.version = TENSORCAST_VERSION;
  const auto documents = std::make_shared<dashboard::Documents>(std::move(source));
  options.documents = [documents](const std::string& view, const dashboard::Query& query) {
    return documents->Make(view, query);
  };
  TC_ASSIGN_OR_RETURN(const auto server, dashboard::Dashboard::Start(std::move(options)));
  // The folders that are made for it are this user's alone, as a server's are.
  umask(0077);
  const std::string path = dashboard::TokenSocketPath(server->port());
  TC_ASSIGN_OR_RETURN(const auto tokens,
                      dashboard::TokenSocket::Listen(path, [&] { return server->NewLoginAddress(); }));
  // A second signal ends the process at once: the socket's file goes all the same.
  RemoveWhenTerminatedAgain(path);
  const std::string address = server->NewLoginAddress();
  TC_RETURN_IF_ERROR(
      Show(common, {{"address", address}, {"port", server->port()}},
           absl::StrCat("dashboard at ", address, "\n",
                        "Open this address within 15 minutes: it logs in one browser, once. `tensorcast "
                        "dashboard token` prints an address for another browser.\n")));
  // A script that started this reads the address from a pipe.
  std::fflush(stdout);
  if (flags.open) Open(address);
  absl::Notification interrupted;
  const auto registration = OnTerminationSignal().OnCancel([&] { interrupted.Notify(); });
  interrupted.WaitForNotification();
  return absl::OkStatus();
}

absl::Status PrintToken(const CommonFlags& common, const DashboardFlags& flags) {
  TC_ASSIGN_OR_RETURN(const HostPort listen, ListenAddress(flags));
  TC_ASSIGN_OR_RETURN(const std::string address,
                      dashboard::AskForAddress(dashboard::TokenSocketPath(listen.port)));
  const std::string token = address.substr(address.rfind('=') + 1);
  return Show(common, {{"address", address}, {"token", token}},
              absl::StrCat(address, "\ntoken ", token, "\n"));
}

int RunDashboard(const CommonFlags& common, const DashboardFlags& flags) {
  if (!flags.token.empty()) return ExitCode(PrintToken(common, flags));
  return EndlessExitCode(ServeUntilInterrupted(common, flags));
}

void AddFlags(Flags& flags, DashboardFlags& values) {
  flags.Add("token", values.token,
            "The word `token`: print a login address for another browser, and serve nothing; this user must "
            "already run a dashboard at --listen",
            {.choices = {"token"}});
  flags.Add("--listen", values.listen,
            "host:port to serve on; an address that is not loopback needs --cert and --key",
            {.show_default = true, .not_empty = true});
  flags.Add("--open", values.open, "Open the address in this user's browser");
  flags.Add("--cert", values.tls.certificate,
            "Serve with TLS: PEM file of the server's certificate and its chain", {.path = true});
  flags.Add("--key", values.tls.key, "PEM file of the key of --cert", {.path = true});
  flags.Add(
      "--client-ca", values.tls.client_ca,
      "PEM file of authorities; a browser with a certificate from one of these authorities needs no token",
      {.path = true});
}

}  // namespace

Command DashboardCommand() {
  return {.name = "dashboard",
          .help = "Serve a dashboard of the cluster for browsers",
          .bind = Bind(AddFlags, RunDashboard)};
}

}  // namespace tensorcast::cli
