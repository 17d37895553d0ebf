//! Everything at a glance, as it changes.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::ensure;
use crossterm::event::{Event, KeyCode, KeyModifiers};
use crossterm::{cursor, event, execute, queue, style, terminal};
use serde::Serialize;

use super::desk::{Desk, look};
use super::given::Reach;
use super::routes::Filled;
use super::show::{now_ms, time};
use super::{lanes, listeners, routes, show};
use crate::api::lanes::WireLane;
use crate::api::listeners::Listeners;
use crate::api::watch::Lanes;

/// What is shown.
#[derive(Serialize)]
struct View {
    at_ms: u64,
    place: String,
    routes: Vec<Filled>,
    lanes: Vec<WireLane>,
    listeners: Listeners,
}

impl View {
    async fn of(desk: &Desk) -> anyhow::Result<View> {
        let Lanes { lanes } = desk.get("/v1/lanes").await?;
        let (routes, listeners) = (routes::filled(desk).await?, desk.get("/v1/listeners").await?);
        Ok(View { at_ms: now_ms(), place: desk.place().to_owned(), routes, lanes, listeners })
    }

    fn text(&self) -> String {
        let View { at_ms, place, routes, lanes, listeners } = self;
        let mut text = format!("{place}, {}\n\n{}", time(*at_ms), self::routes::table(routes, *at_ms));
        if !lanes.is_empty() {
            text.push_str(&format!("\n{}", self::lanes::table(lanes)));
        }
        if !listeners.listeners.is_empty() {
            text.push_str(&format!("\n{}", self::listeners::table(&listeners.listeners)));
        }
        text
    }
}

/// Shows everything, once or until told to end.
pub(super) async fn show(reach: &Reach, once: bool, every: Duration) -> anyhow::Result<()> {
    if once || reach.json {
        let view = look(reach, View::of).await?;
        return show::print(reach.json, &view, View::text);
    }
    ensure!(std::io::stdout().is_terminal(), "this is no terminal: say --once, or --json");
    look(reach, async |desk| {
        let screen = Screen::take()?;
        let shown = follow(desk, every).await;
        drop(screen);
        shown
    })
    .await
}

/// The terminal, which is given back as it was.
struct Screen;

impl Screen {
    fn take() -> std::io::Result<Screen> {
        terminal::enable_raw_mode()?;
        execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(Screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _left = execute!(std::io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _cooked = terminal::disable_raw_mode();
    }
}

/// Looks again and again. What fails is shown, and asked for again: an instance may be starting.
async fn follow(desk: &Desk, every: Duration) -> anyhow::Result<()> {
    loop {
        let text = match View::of(desk).await {
            Ok(view) => view.text(),
            Err(error) => format!("{}\n\n{error:#}\n", desk.place()),
        };
        draw(&text)?;
        if tokio::task::spawn_blocking(move || is_over(every)).await?? {
            return Ok(());
        }
    }
}

fn draw(text: &str) -> std::io::Result<()> {
    let (width, height) = terminal::size()?;
    let mut out = std::io::stdout();
    // Over what is there, line by line: a screen that is cleared first flickers.
    for (line, row) in fitted(text, usize::from(width), usize::from(height)).into_iter().zip(0..) {
        queue!(out, cursor::MoveTo(0, row), style::Print(line), terminal::Clear(terminal::ClearType::UntilNewLine))?;
    }
    queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
    out.flush()
}

/// What of a text fits on a screen, with how it is ended or how much is missing in the last line.
fn fitted(text: &str, width: usize, height: usize) -> Vec<String> {
    let (lines, room) = (text.lines().count(), height.saturating_sub(1));
    let last = match lines.saturating_sub(room) {
        0 => "q ends".to_owned(),
        more => format!("{more} more lines: make the window higher; q ends"),
    };
    let shown = text.lines().take(room).chain([last.as_str()]).take(height);
    shown.map(|line| line.chars().take(width).collect()).collect()
}

/// Waits for the next look; whether a key ended it.
fn is_over(every: Duration) -> std::io::Result<bool> {
    let until = std::time::Instant::now() + every;
    while event::poll(until.saturating_duration_since(std::time::Instant::now()))? {
        match event::read()? {
            Event::Key(key) => {
                let is_break = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if is_break || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(true);
                }
            }
            // Another window: drawn at once.
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::fitted;

    #[test]
    fn what_does_not_fit_is_told() {
        assert_eq!(fitted("one\ntwo\n", 20, 10), ["one", "two", "q ends"]);
        assert_eq!(fitted("one\ntwo\n", 2, 10), ["on", "tw", "q "]);
        assert_eq!(fitted("one\ntwo\nthree\n", 80, 3), ["one", "two", "1 more lines: make the window higher; q ends"]);
        assert_eq!(fitted("one\n", 80, 0), [""; 0]);
    }
}
