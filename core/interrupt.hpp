#pragma once

namespace isobar {

/// From now on SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) only set a flag; long work looks at
/// it. A file that outgrows the process's limit is an error of its write, not a signal. Called once, by main.
void catch_interrupts();

/// True once the process was asked to stop. Cheap enough for inner loops.
bool interrupted();

/// @throws Interrupted once the process was asked to stop.
void throw_if_interrupted();

}  // namespace isobar
