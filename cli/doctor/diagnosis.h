// Runs all checks of `tensorcast doctor`, and contains the checks of this host. Pure functions.
#pragma once

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

// Checks that the daemon answers; if no daemon answers, lists the folders that were searched for a socket.
void CheckDaemon(const Facts& facts, FindingList& out);
// Checks the space for packed artifacts.
void CheckDisk(const Facts& facts, FindingList& out);

FindingList Diagnose(const Facts& facts);

}  // namespace tensorcast::doctor
